// BullMQ: one worker process, which also moves what is due; done jobs are removed.
// It runs in the directory in which `npm install bullmq` was run.
import { closeSync, openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const { Queue, Worker } = createRequire(process.cwd() + "/")("bullmq");
const NAME = "compare";
const CONCURRENCY = 100;
const AT_A_TIME = 1_000;
const [role, url, ...rest] = process.argv.slice(2);
const { hostname: host, port } = new URL(url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };

async function produce([first, count, aheadMs, everyMs]) {
  const data = (number) => String(number).padStart(10, "0").padEnd(64, "x");
  const payloads = Array.from({ length: count }, (_, n) => data(first + n));
  const start = performance.now();
  const dueMs = Date.now() + aheadMs;
  const queue = new Queue(NAME, { connection });
  for (let done = 0; done < count; done += AT_A_TIME) {
    const now = Date.now();
    const jobs = payloads.slice(done, done + AT_A_TIME).map((payload, n) => ({
      name: NAME,
      data: payload,
      opts: { delay: Math.max(0, dueMs + Math.trunc((done + n) * everyMs) - now), removeOnComplete: true },
    }));
    await queue.addBulk(jobs);
  }
  console.log((performance.now() - start) / 1000, dueMs);
  await queue.close();
}

async function work(log, seconds) {
  const file = openSync(log, "a");
  const note = (what, number) =>
    writeSync(file, `${what} ${number} ${(performance.timeOrigin + performance.now()).toFixed(3)}\n`);
  const handle = async (job) => {
    const number = Number(job.data.slice(0, 10));
    note("start", number);
    if (seconds) {
      await sleep(seconds * 1000);
      note("done", number);
    }
  };
  const worker = new Worker(NAME, handle, { connection, concurrency: CONCURRENCY });
  process.on("SIGTERM", () => worker.close().then(() => closeSync(file)).then(() => process.exit(0)));
}

if (role === "produce") await produce(rest.map(Number));
else await work(rest[0], Number(rest[1]));
