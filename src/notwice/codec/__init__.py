"""Results and records as bytes: lossless, tagged, and never by running what the bytes say."""

from notwice.codec.annotations import check_encodable
from notwice.codec.records import RECORD_FORMAT, decode_record, encode_record
from notwice.codec.sealing import Cipher, closed_reason, seal, unseal
from notwice.codec.values import decode_value, encode_step, encode_value, is_step_at_home

__all__ = [
    "RECORD_FORMAT",
    "Cipher",
    "check_encodable",
    "closed_reason",
    "decode_record",
    "decode_value",
    "encode_record",
    "encode_step",
    "encode_value",
    "is_step_at_home",
    "seal",
    "unseal",
]
