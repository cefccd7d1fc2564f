// Schedules a job in wheelq with the package `redis` alone:
//
//     node producer.mjs REDIS_URL SCRIPTS TOPIC ID DELAY_MS TEXT        SCRIPTS: what `wheelq script --into` has written
//
// Prints {"created": …, "due_ms": …}. A call whose reply is lost is repeated with its tag, so that it makes no second job.

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { crc32 } from "node:zlib";
import { createClient, RESP_TYPES } from "redis";

const PREFIX = "wheelq";
const CREATED = 1, REPLACED = 2, TOO_MANY_WAIT = 5;
const TAG_SECONDS = 30, ALWAYS = 2 ** 53, MOST_CALLS = 3;
const [url, scripts, topic, id, delayMs, text] = process.argv.slice(2);

const place = url.startsWith("unix://") ? { socket: { path: url.slice(7) } } : { url };
const client = createClient({ ...place, RESP: 2 }); // replies are lists, as the protocol page shows them
const typeMapping = { [RESP_TYPES.BLOB_STRING]: Buffer };

client.on("error", (error) => console.error(String(error))); // it connects again by itself

/** Runs a script. It is loaded each time; a program that goes on running does that once. */
async function run(name, keys, args) {
  const digest = await client.scriptLoad(readFileSync(`${scripts}/${name}.lua`, "utf8"));
  return client.sendCommand(["EVALSHA", digest, String(keys.length), ...keys, ...args], { typeMapping });
}

/** Runs a script that may be run again with the same arguments, and repeats it when it fails. */
async function runSurely(name, keys, args) {
  for (let call = 1; ; call++) {
    try {
      return await run(name, keys, args);
    } catch (error) {
      if (call === MOST_CALLS) throw error;
    }
  }
}

/** The record of a job whose payload is a text: version 2, no time, attempt 1, no flags, a life, msgpack str 32. */
function recordOf(text) {
  const bytes = Buffer.from(text);
  const size = Buffer.from([0xdb, 0, 0, 0, 0]);
  size.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([Buffer.from([2, 0, 0, 0, 0, 0, 0, 1, 0]), randomBytes(8), size, bytes]);
}

/** The number of shards in a topic's settings. */
function shardsIn(settings) {
  const at = settings.indexOf("\xa6shards", 0, "latin1");
  if (at < 0) return 1;
  const value = settings.subarray(at + 7);
  return value[0] < 0x80 ? value[0] : value[0] === 0xcc ? value[1] : value.readUInt16BE(1);
}

async function schedule() {
  const settings = await runSurely("register_topic", [`${PREFIX}:topics`],
    [`${PREFIX}:changes`, topic, ":version", Buffer.from([0x80])]);
  const record = recordOf(text), tag = randomBytes(12);
  let terms = String(shardsIn(settings));
  for (;;) {
    const stem = `${PREFIX}:{${topic}:${crc32(id) % parseInt(terms)}}:`;
    const keys = ["delayed", "jobs", "ready", "horizon", "shards", "done", "counts", `tags:${TAG_SECONDS}:0`,
      `tags:${TAG_SECONDS}:1`].map((name) => stem + name);
    const reply = await runSurely("schedule", keys, [`${stem}near`, "keep", terms, tag, String(TAG_SECONDS * 1000),
      String(ALWAYS), "", id, `+${delayMs}`, record]);
    // Of a live job that was kept, the reply has its due time and its life.
    if (reply.length > 1) return { status: Number(reply[0]), due: Number([reply[1]].flat()[0]) };
    terms = reply[0].toString(); // the topic's settings have changed
  }
}

await client.connect();
const { status, due } = await schedule();
await client.close();
if (status === TOO_MANY_WAIT) throw new Error("too many jobs wait");
console.log(JSON.stringify({ created: status === CREATED || status === REPLACED, due_ms: due }));
