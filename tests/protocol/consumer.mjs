// Consumes jobs of wheelq with the package `redis` alone:
//
//     node consumer.mjs REDIS_URL SCRIPTS TOPIC GROUP COUNT        SCRIPTS: what `wheelq script --into` has written
//
// Prints {"id": …, "attempt": …, "text": …, "late_ms": …} for each run, and ends after COUNT jobs. A job whose text is
// "fail once" fails at its first attempt, and is retried; "slow" takes longer than a delivery lasts that nobody renews.

import { hostname } from "node:os";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { createClient, RESP_TYPES } from "redis";

const PREFIX = "wheelq", BEAT_MS = 1300, ABANDONED_MS = 3500, MOST_DELIVERIES = 10, RETRY_MS = 200, MOST_AT_ONCE = 10;
const ATTEMPT_AT = 7, FLAGS_AT = 8, HEAD = 17, HAS_PARTS = 1; // in a record
const DEAD_RETENTION_MS = 90 * 86_400_000, DEAD_MAX = 100_000;
const [url, scripts, topic, group, count] = process.argv.slice(2);
const consumer = `${hostname()}-${process.pid}`;

/** What is not answered for comes again, to this consumer or another. */
const complain = (error) => console.error(String(error));

const place = url.startsWith("unix://") ? { socket: { path: url.slice(7) } } : { url };
const client = createClient({ ...place, RESP: 2 }); // replies are lists, as the protocol page shows them
const reader = client.duplicate(); // a blocking read has a connection of its own
for (const connection of [client, reader]) connection.on("error", complain);
const typeMapping = { [RESP_TYPES.BLOB_STRING]: Buffer };
const held = new Map(); // entry id → shard
let left = Number(count);

async function run(name, keys, args) {
  const digest = await client.scriptLoad(readFileSync(`${scripts}/${name}.lua`, "utf8"));
  return client.sendCommand(["EVALSHA", digest, String(keys.length), ...keys, ...args.map(bytesOf)], { typeMapping });
}

const bytesOf = (value) => (Buffer.isBuffer(value) ? value : String(value));
const key = (shard, name) => `${PREFIX}:{${topic}:${shard}}:${name}`;
const keys = (shard, ...names) => names.map((name) => key(shard, name));

/** A number in the topic's settings, a msgpack map; `missing` if it is not there. */
async function setting(name, missing) {
  const settings = await client.sendCommand(["HGET", `${PREFIX}:topics`, topic], { typeMapping });
  const at = settings ? settings.indexOf(String.fromCharCode(0xa0 + name.length) + name, 0, "latin1") : -1;
  if (at < 0) return missing;
  const value = settings.subarray(at + 1 + name.length);
  const wide = { 0xcc: () => value[1], 0xcd: () => value.readUInt16BE(1), 0xce: () => value.readUInt32BE(1),
    0xcf: () => Number(value.readBigUInt64BE(1)) }[value[0]];
  return wide ? wide() : value[0];
}

function jobOf(entryId, list) {
  const fields = {};
  for (let n = 0; n < list.length; n += 2) fields[list[n]] = list[n + 1];
  const id = fields.id.toString();
  const only = fields.group?.toString();
  return { entryId, id, only, member: only === undefined ? id : `${id}\x1f${only}`, due: Number(fields.due),
    attempt: Number(fields.attempt), record: fields.record };
}

/** The payload, if it is a text as producer.mjs sends it. */
function textOf(record) {
  const parts = record[FLAGS_AT] & HAS_PARTS ? 2 + record.readUInt16BE(HEAD) : 0;
  const size = HEAD + parts + 1; // behind the byte that says that it is a text
  return record.subarray(size + 4, size + 4 + record.readUInt32BE(size)).toString();
}

async function handle(shard, job, retentionMs) {
  const ack = () => run("ack", keys(shard, "ready", "jobs", "counts"), [group, consumer, 0, retentionMs, job.entryId, job.member]);
  if (job.only !== undefined && job.only !== group) return ack(); // the retry of another group
  const text = textOf(job.record);
  console.log(JSON.stringify({ id: job.id, attempt: job.attempt, text, late_ms: Date.now() - job.due }));
  if (text === "slow") await sleep(2 * ABANDONED_MS);
  if (text === "fail once" && job.attempt === 1) {
    const next = Buffer.from(job.record);
    next[ATTEMPT_AT] += 1;
    return run("retry", keys(shard, "ready", "jobs", "delayed", "horizon", "retries"),
      [group, consumer, job.entryId, job.id, RETRY_MS, key(shard, "near"), next]);
  }
  left -= 1;
  return ack();
}

async function begin(shard, entryId, list, retentionMs) {
  if (held.has(entryId)) return;
  held.set(entryId, shard);
  try {
    await handle(shard, jobOf(entryId, list), retentionMs);
  } finally {
    held.delete(entryId);
  }
}

/** Renews what runs here; takes over what nobody renews any more. */
async function lookAfter(shards, cursors, retentionMs) {
  for (let shard = 0; shard < shards; shard++) {
    const mine = [...held].filter(([, of]) => of === shard).map(([entryId]) => entryId);
    // What the answer names is no more ours; a long job would be stopped then. Its ack and retry change nothing.
    if (mine.length) await run("keep", keys(shard, "ready"), [group, consumer, ...mine]);
    const [cursor, claimed] = await client.sendCommand(["XAUTOCLAIM", key(shard, "ready"), group, consumer,
      String(ABANDONED_MS), cursors[shard] ?? "0-0", "COUNT", "100", "JUSTID"]);
    cursors[shard] = cursor;
    if (!claimed.length) continue;
    const adopted = await run("adopt", keys(shard, "ready"), [group, consumer, ...claimed]);
    for (let n = 0; n < adopted.length; n += 3) {
      const entryId = adopted[n].toString();
      if (adopted[n + 1] <= MOST_DELIVERIES) {
        begin(shard, entryId, adopted[n + 2], retentionMs).catch(complain);
        continue;
      }
      const job = jobOf(entryId, adopted[n + 2]);
      await run("bury", keys(shard, "ready", "jobs", "dead", "buried", "progress", "news"), [group, consumer, entryId,
        job.id, job.member, job.attempt, job.due, "deliveries", "nobody answers for it", "", retentionMs,
        DEAD_RETENTION_MS, DEAD_MAX]);
    }
  }
}

await Promise.all([client.connect(), reader.connect()]);
const [shards, retentionMs] = [await setting("shards", 1), await setting("retention_ms", 0)];
const streams = Array.from({ length: shards }, (_, shard) => key(shard, "ready"));
for (let shard = 0; shard < shards; shard++) {
  await run("make_group", keys(shard, "ready", "groups", "counts"), [group, "beginning"]);
}
const cursors = [];
let looking = false;
const beat = setInterval(async () => {
  if (looking) return;
  looking = true;
  await lookAfter(shards, cursors, retentionMs).catch(complain);
  looking = false;
}, BEAT_MS);
while (left > 0) {
  const room = MOST_AT_ONCE - held.size;
  if (room < 1) {
    await sleep(10);
    continue;
  }
  const found = await reader.sendCommand(["XREADGROUP", "GROUP", group, consumer, "COUNT", String(room), "BLOCK", "500",
    "STREAMS", ...streams, ...streams.map(() => ">")], { typeMapping });
  for (const [stream, entries] of found ?? []) {
    const shard = streams.indexOf(stream.toString());
    for (const [entryId, list] of entries) begin(shard, entryId.toString(), list, retentionMs).catch(complain);
  }
}
clearInterval(beat);
while (held.size || looking) await sleep(10);
for (const stream of streams) await run("leave", [stream], [group, consumer]);
await Promise.all([client.close(), reader.close()]);
