"""Stream processing with Faust: one package per domain, each with its logic and its stage.

Importing this package makes the codec decode with native readers.
"""

from native.core import avro
from schemas import codec

codec.use_readers(avro)
