"""The whole claim, for an engine in the trainer's process and for one in its own: three steps that sample what the trainer scores."""

from qwen_vl_grpo import parity

BOUND = 1e-5


def metrics(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def take(trainer, samples):
    """Train, with every log-probability difference under the bound before, during and after, and a loss that is not 0."""
    before = parity.check(trainer, samples, "before the first step")
    trainer.train()
    after = parity.check(trainer, samples, "after the last step")
    differences = metrics(trainer, "rollouts/logp_difference/mean")
    assert len(differences) == 3
    assert max(*differences, before["parity/pictures"], after["parity/pictures"], after["parity/text"]) < BOUND
    assert any(abs(loss) > 1e-8 for loss in metrics(trainer, "loss"))
    assert min(metrics(trainer, "grad_norm")) > 0
