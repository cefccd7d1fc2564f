// With the types that openapi-typescript makes: schedule, lease, progress, ack with a result, wait. scenario.js URL
import createClient from "openapi-fetch";
import type { components, paths } from "./wheelq.js";

const client = createClient<paths>({ baseUrl: process.argv[2] });

function same(found: unknown, expected: unknown): void {
  if (JSON.stringify(found) !== JSON.stringify(expected))
    throw new Error(`${JSON.stringify(found)} is not ${JSON.stringify(expected)}`);
}

const topic = { path: { topic: "typescript" } };
const group = { path: { topic: "typescript", group: "billing" } };
const later: components["schemas"]["NewJob"][] = [
  { id: "ts-1", delay: 3600 },
  { id: "ts-2", at: "2030-01-31T09:00:00Z" },
];
const many = await client.POST("/v1/topics/{topic}/bulk", { params: { path: { topic: "later" } }, body: { jobs: later } });
same(many.data?.made, 2);
await client.POST("/v1/topics/{topic}/jobs", {
  params: topic,
  body: { id: "ts", payload: { to: "ada" }, delay: 0 },
});
await client.PATCH("/v1/topics/{topic}/settings", { params: topic, body: { keep_done_ms: 60_000 } });
const job = { path: { topic: "typescript", id: "ts" } };
const waiting = client.GET("/v1/topics/{topic}/jobs/{id}", { params: { ...job, query: { wait: 20 } } });
const leased = await client.POST("/v1/topics/{topic}/groups/{group}/lease", { params: group, body: { wait: 20 } });
if (leased.error) throw new Error(leased.error.title);
const handles = leased.data.jobs.map((one) => one.handle);
same(leased.data.jobs.map((one) => [one.id, one.payload]), [["ts", { to: "ada" }]]);
const told = await client.POST("/v1/topics/{topic}/groups/{group}/progress", {
  params: group,
  body: { handles, fraction: 0.5, text: "half" },
});
same(told.data?.done, [true]);
same((await client.GET("/v1/topics/{topic}/jobs/{id}", { params: job })).data?.progress?.fraction, 0.5);
const acked = await client.POST("/v1/topics/{topic}/groups/{group}/ack", {
  params: group,
  body: { handles, result: { sent: true } },
});
same(acked.data?.done, [true]);
const view = (await waiting).data;
same([view?.state, view?.result], ["done", { sent: true }]);
