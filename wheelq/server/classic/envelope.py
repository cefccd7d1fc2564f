"""Every answer of the classic API: `{"dm_error": 0, "error_msg": "操作成功", …}`.

| dm_error | means                                                     | HTTP |
|----------|-----------------------------------------------------------|------|
| 0        | done                                                      | 200  |
| 1001     | a parameter is missing or wrong                           | 200  |
| 1002     | the body cannot be read                                   | 200  |
| 1003     | the body is too large                                     | 200  |
| 1101     | an API key is needed                                      | 200  |
| 1102     | the API key may not do this                               | 200  |
| 1201     | no task of the topic is due                               | 200  |
| 1202     | the task is not due yet                                   | 200  |
| 1203     | there is no such task, or it was pulled long ago          | 200  |
| 1301     | too many requests: wait as long as Retry-After says       | 429  |
| 1302     | overloaded, or Redis is away: nothing was done            | 503  |
| 1303     | unknown outcome: repeat with the task_id in the answer    | 504  |
| 1500     | the server is at fault                                    | 500  |

Mistakes of the caller get status 200, because callers look only at dm_error. Temporary failures get the status that
proxies and retrying clients know.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from wheelq.server import problems
from wheelq.server.problems import Kind, Problem

PATH = "/delay/task/"
NOTHING_DUE = Kind(200, "nothing-due", "No task of this topic is due")
NOT_DUE = Kind(200, "not-due", "The task is not due yet")
NO_TASK = Kind(200, "no-task", "There is no such task, or it was pulled long ago")

_CODES: dict[Kind, tuple[int, str]] = {
    problems.INVALID: (1001, "参数错误"),
    problems.BAD_REQUEST: (1002, "请求体无法解析"),
    problems.UNSUPPORTED: (1002, "请求体无法解析"),
    problems.TOO_SLOW: (1002, "请求体无法解析"),
    problems.TOO_LARGE: (1003, "请求体过大"),
    problems.NO_KEY: (1101, "需要密钥"),
    problems.NOT_ALLOWED: (1102, "没有权限"),
    problems.FOREIGN_ORIGIN: (1102, "没有权限"),
    NOTHING_DUE: (1201, "没有到期的任务"),
    problems.TOPIC_NOT_FOUND: (1201, "没有到期的任务"),
    NOT_DUE: (1202, "任务未到期"),
    NO_TASK: (1203, "任务不存在"),
    problems.TOO_MANY: (1301, "请求过于频繁"),
    problems.OVERLOADED: (1302, "服务繁忙"),
    problems.UNAVAILABLE: (1302, "服务不可用"),
    problems.REFUSED: (1302, "服务不可用"),
    problems.OUTCOME_UNKNOWN: (1303, "结果未知"),
    problems.NOT_CONFIRMED: (1303, "结果未知"),
}
_FAULT = (1500, "服务内部错误")
_PASSES = 1300
"""Codes from here on are not mistakes of the caller."""


def success(**more: Any) -> Response:
    """Returns the answer for success."""
    return Response(to_json({"dm_error": 0, "error_msg": "操作成功", **more}), media_type="application/json")


def failure(problem: Problem) -> Response:
    """Returns the answer for a problem; 404 and 405 of the path itself count as wrong parameters."""
    is_path = problem.kind in (problems.NOT_FOUND, problems.METHOD_NOT_ALLOWED)
    code, words = _CODES[problems.INVALID] if is_path else _CODES.get(problem.kind, _FAULT)
    body: dict[str, Any] = {"dm_error": code, "error_msg": f"{words}: {problem.body()['detail']}"}
    if problem.ids and problem.ids[0].isdecimal():
        body["task_id"] = int(problem.ids[0])
    told = problem.response()
    headers = {name: told.headers[name] for name in ("retry-after", "allow", "connection") if name in told.headers}
    return Response(
        to_json(body), problem.kind.status if code >= _PASSES or is_path else 200, headers, "application/json"
    )
