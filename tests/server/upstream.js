// The same kind of service in another language: node upstream.js PORT JOURNAL
const fs = require("fs");
const http = require("http");

const [port, journal] = [Number(process.argv[2]), process.argv[3]];

const paths = {
  "/charge": (request, response) => {
    request.resume().on("end", () => {
      response.writeHead(201, { "content-type": "application/json", location: "/charges/1" });
      response.end('{"charged": true}');
    });
  },
  "/die": (request) => request.resume().on("end", () => process.kill(process.pid, "SIGKILL")),
  // Answers while it still reads: both directions of one exchange are under way at once.
  "/pipe": (request, response) => request.pipe(response),
};

const server = http.createServer((request, response) => {
  fs.appendFileSync(journal, `${request.method} ${request.url}\n`);
  const answer = paths[request.url] || ((_, other) => other.writeHead(404).end());
  answer(request, response);
});

server.listen(port, "127.0.0.1", () => console.log(`listening: ${server.address().port}`));
