"""A training rank on a slow device: each layer takes so much longer in its forward, by stage, as SLOW_LAYERS says in seconds."""

import os
import time

from rayplane.model.transformer import Block
from rayplane.rank.life import live
from rayplane.spec.layout import Layout
from rayplane.train import worker

SECONDS = [float(seconds) for seconds in os.environ["SLOW_LAYERS"].split()]
forward = Block.forward


def train(channel, join, store):
    """The same training, whatever the rank is now: a rank that is called back may come again in another stage."""
    given = join["config"]["layout"]
    stage = Layout(**{**given, "boundaries": tuple(given["boundaries"])}).coord(join["rank"]).pp

    def slowed(*args):
        time.sleep(SECONDS[stage])
        return forward(*args)

    Block.forward = slowed
    worker._train(channel, join, store)


if __name__ == "__main__":
    live(train, again=True)
