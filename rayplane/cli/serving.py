"""`rayplane run` of a job that serves: it becomes an endpoint.

load ──▶ lock runs/NAME ──▶ find the cluster ──▶ plan ──▶ ServiceController ──▶ table, result
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from rayplane.cli.fleet import Options, open_fleet
from rayplane.cli.folder import refuse_training, set_aside
from rayplane.cli.load_line import load_line
from rayplane.cli.profiles import profiled
from rayplane.cli.report import service_object, show_service
from rayplane.cli.screen import say, screen, warnings_on
from rayplane.cli.serve_metrics import ServeMetrics, ServeTargets
from rayplane.cli.serve_task import ServeOrder, serve_task
from rayplane.cli.signals import stop_on_signals
from rayplane.cli.words import count
from rayplane.control.lock import locked
from rayplane.control.mailbox import Mailbox
from rayplane.control.service_loop import ServiceController, ServiceObserver
from rayplane.control.service_orders import ServiceOrders
from rayplane.control.service_task import Ground
from rayplane.control.stop import Stop
from rayplane.control.tenure import tenure
from rayplane.plan.machine.cores import priced_by
from rayplane.plan.serving.serve_explain import serve_report
from rayplane.plan.serving.serve_plan import ServePlan
from rayplane.plan.serving.serving import plan_of
from rayplane.plan.step.profile import in_words
from rayplane.runtime.patience import GaveUp
from rayplane.spec.job import ServeJob
from rayplane.spec.load import load_model
from rayplane.spec.source import pinned

RUNS = Path("runs")

Company = Callable[[Stop], AbstractContextManager[ServiceObserver]]
"""Who is with a service while it runs, and may stop it."""


def service_folder(job: ServeJob) -> Path:
    """Where a job that serves has its state, logs and tokenizer: runs/NAME, in the directory that rayplane runs in."""
    return (RUNS / job.name).absolute()


def serve(job: ServeJob, options: Options, console: Console, company: Company | None = None) -> tuple[dict[str, Any], int]:
    """Until it is stopped, or fails; the final object and the exit code. Without company its load is shown."""
    job = job.model_copy(update={"model": pinned(job.model)})
    order = ServeOrder(job, load_model(job.model), service_folder(job))
    with locked(order.directory, "name"):
        if options.fresh and (aside := set_aside(order.directory)):
            say(console, f"the earlier run is kept in {aside}")
        refuse_training(order.directory)
        try:
            with tenure(order.directory, job.limits) as died:
                if died:
                    say(console, f"runs in a row whose driver died without an end: {died}")
                return _serve(order, options, console, company or (lambda _: load_line(console)))
        except GaveUp:
            say(console, f"{job.name} stopped before it was started")
            return {"name": job.name, "state": "drained", "urls": [], "message": ""}, 0


def _serve(order: ServeOrder, options: Options, console: Console, company: Company) -> tuple[dict[str, Any], int]:
    job, stop, mailbox = order.job, Stop(), Mailbox(order.directory)
    mailbox.open()
    with stop_on_signals(stop), warnings_on(console), open_fleet(options.runtime, job) as fleet:
        cluster = profiled(fleet.cluster, options.profile, found=True)
        chosen = plan_of(job, order.model, cluster)
        _introduce(order, chosen, console)
        say(console, f"figures {in_words(priced_by(cluster), job.model.dtype or 'bf16')}")
        task = serve_task(order, chosen, cluster, fleet.device)
        with company(stop) as shown, ServiceOrders(mailbox, stop) as orders:
            observers = (shown, ServeMetrics(fleet.exporter), ServeTargets(order.directory, fleet.targets, console), orders)
            result = ServiceController(task, Ground(fleet.new_group, fleet.nodes), observers).run(stop)
    final = service_object(task, result)
    show_service(console, final)
    if result.state == "failed":
        say(screen(stderr=True), f"{job.name} failed: {result.message}; logs are in {order.directory / 'logs'}")
    return final, result.exit_code


def _introduce(order: ServeOrder, chosen: ServePlan, console: Console) -> None:
    job, model = order.job, order.model
    say(console, f"{job.name}: {model.name}, {count(model.num_params)} parameters, {job.model.dtype or 'bf16'}")
    told = serve_report(chosen)
    say(console, ", ".join(f"{name} {value}" for name, value in zip(told.headers, told.ranked[0], strict=True)))
    for text in (f"why: {told.why}", *(f"note: {note}" for note in told.notes)):
        say(console, text)
