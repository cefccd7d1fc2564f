// Schedules a job in wheelq with the package `redis` alone:
//
//     node producer.mjs REDIS_URL SCRIPTS TOPIC ID DELAY_MS TEXT        SCRIPTS: what `wheelq script --into` has written
//
// Prints {"created": …, "due_ms": …}. Ask again with the same ID and TEXT when it fails: no second job is made.

import { readFileSync } from "node:fs";
import { crc32 } from "node:zlib";
import { createClient, RESP_TYPES } from "redis";

const PREFIX = "wheelq";
const CREATED = 1, REPLACED = 2, TOO_MANY_WAIT = 5;
const [url, scripts, topic, id, delayMs, text] = process.argv.slice(2);

const place = url.startsWith("unix://") ? { socket: { path: url.slice(7) } } : { url };
const client = createClient({ ...place, RESP: 2 }); // replies are lists, as the protocol page shows them
const typeMapping = { [RESP_TYPES.BLOB_STRING]: Buffer };

/** Runs a script. It is loaded each time; a program that goes on running does that once. */
async function run(name, keys, args) {
  const digest = await client.scriptLoad(readFileSync(`${scripts}/${name}.lua`, "utf8"));
  return client.sendCommand(["EVALSHA", digest, String(keys.length), ...keys, ...args], { typeMapping });
}

/** The record of a job whose payload is a text: version 1, attempt 1, msgpack array of one, str 32. */
function recordOf(text) {
  const bytes = Buffer.from(text);
  const head = Buffer.from([1, 1, 0x91, 0xdb, 0, 0, 0, 0]);
  head.writeUInt32BE(bytes.length, 4);
  return Buffer.concat([head, bytes]);
}

/** The number of shards in a topic's settings. */
function shardsIn(settings) {
  const at = settings.indexOf("\xa6shards", 0, "latin1");
  if (at < 0) return 1;
  const value = settings.subarray(at + 7);
  return value[0] < 0x80 ? value[0] : value[0] === 0xcc ? value[1] : value.readUInt16BE(1);
}

async function schedule() {
  const settings = await run("register_topic", [`${PREFIX}:topics`],
    [`${PREFIX}:changes`, topic, ":version", Buffer.from([0x80])]);
  let terms = String(shardsIn(settings));
  for (;;) {
    const stem = `${PREFIX}:{${topic}:${crc32(id) % parseInt(terms)}}:`;
    const keys = ["delayed", "jobs", "ready", "horizon", "shards", "done"].map((name) => stem + name);
    const reply = await run("schedule", keys, [`${stem}near`, "keep", terms, id, `+${delayMs}`, recordOf(text)]);
    if (reply.length > 1) return { status: Number(reply[0]), due: Number(reply[1]) };
    terms = reply[0].toString(); // the topic's settings have changed
  }
}

await client.connect();
const { status, due } = await schedule();
await client.close();
if (status === TOO_MANY_WAIT) throw new Error("too many jobs wait");
console.log(JSON.stringify({ created: status === CREATED || status === REPLACED, due_ms: due }));
