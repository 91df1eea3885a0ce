"""The web application: it enqueues jobs and shows their results, and no request waits for a job."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from holdfast import AsyncJobHandle, JobState, UnknownJob
from holdfast.values import CancelAnswer
from reports.jobs import Order, Report, build, hf


class Accepted(BaseModel):
    id: str


class Shown(BaseModel):
    state: JobState
    progress: float | None = None
    error: str | None = None
    report: Report | None = None


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Open the engine before the first request, so that a wrong URL is an error at startup. Close it at the end."""
    await asyncio.to_thread(hf.backend)
    yield
    await asyncio.to_thread(hf.close)


web = FastAPI(title="Reports", lifespan=lifespan)


@web.post("/reports", status_code=202)
async def order_report(order: Order) -> Accepted:
    """Respond as soon as the job is stored."""
    handle = await build.enqueue_async(order)
    return Accepted(id=handle.id)


@web.get("/reports/{job_id}")
async def show_report(job_id: str) -> Shown:
    handle: AsyncJobHandle[Report] = hf.handle_async(job_id, returns=Report)
    try:
        job = await handle.view()
    except UnknownJob as problem:
        raise HTTPException(404, str(problem)) from problem
    return Shown(
        state=job.state,
        progress=job.progress.done / job.progress.total if job.progress and job.progress.total else None,
        error=job.last_error,
        report=await handle.result() if job.state is JobState.COMPLETED else None,
    )


@web.delete("/reports/{job_id}")
async def cancel_report(job_id: str) -> CancelAnswer:
    return await hf.handle_async(job_id).cancel("cancelled by the user")
