"""The file of an offline W&B run: what `wandb sync` would send."""

from wandb.proto import wandb_internal_pb2


def records(path, killed=False):
    """The records: a header of seven bytes, then LevelDB's blocks of 32 KiB; of a killed run the last one may be cut short."""
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4) and not (killed and place > len(data)):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""
