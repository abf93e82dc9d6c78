// A payments service that knows nothing of notwice: every POST charges.
//   node examples/payments.js 9000
const http = require("node:http");

let charges = 0;

const service = http.createServer((request, response) => {
  if (request.method !== "POST") return response.writeHead(405).end();
  let body = "";
  request.on("data", (chunk) => { body += chunk; });
  request.on("end", () => {
    charges += 1;
    const { amount } = JSON.parse(body);
    response.writeHead(201, { "Content-Type": "application/json" });
    response.end(JSON.stringify({ charge: `ch_${charges}`, amount }));
  });
});

service.listen(Number(process.argv[2] ?? 9000), "127.0.0.1");
