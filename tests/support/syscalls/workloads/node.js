// What Node asks of the kernel: files, watchers, children, workers, sockets inside the pod, cryptography, compression.
const { execFileSync, fork, spawn, spawnSync } = require("node:child_process");
const crypto = require("node:crypto");
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const os = require("node:os");
const { pipeline } = require("node:stream/promises");
const { Worker } = require("node:worker_threads");
const zlib = require("node:zlib");

const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));

async function files() {
  fs.writeFileSync("one", "x".repeat(100000));
  await fs.promises.copyFile("one", "two");
  await fs.promises.appendFile("two", "y");
  await fs.promises.readFile("two");
  await fs.promises.cp("one", "three");
  await fs.promises.rename("three", "four");
  await fs.promises.symlink("one", "soft");
  await fs.promises.link("one", "hard");
  await fs.promises.chmod("one", 0o640);
  await fs.promises.utimes("one", 1, 1);
  await fs.promises.truncate("two", 10);
  await fs.promises.mkdir("a/b", { recursive: true });
  await fs.promises.readdir(".", { withFileTypes: true, recursive: true });
  await fs.promises.stat("one", { bigint: true });
  await fs.promises.lstat("soft");
  await fs.promises.readlink("soft");
  await fs.promises.realpath("soft");
  await fs.promises.access("one");
  await fs.promises.mkdtemp("temporary-");
  await fs.promises.statfs(".");
  await fs.promises.rm("a", { recursive: true });
  const file = await fs.promises.open("one", "r+");
  await file.sync();
  await file.datasync();
  await file.writev([Buffer.from("a"), Buffer.from("b")], 0);
  await file.readv([Buffer.alloc(2)], 0);
  await file.close();
  await pipeline(fs.createReadStream("one"), zlib.createGzip(), fs.createWriteStream("one.gz"));
  zlib.brotliCompressSync(Buffer.alloc(10000));
  const watcher = fs.watch(".");
  fs.watchFile("one", { interval: 10 }, () => {});
  fs.writeFileSync("seen", "x");
  await once(watcher, "change");
  watcher.close();
  fs.unwatchFile("one");
}

async function children() {
  execFileSync("true");
  spawnSync("sh", ["-c", "cat; exit 1"], { input: "x" });
  const child = spawn("sleep", ["5"], { detached: true });
  child.kill();
  await once(child, "exit");
  const forked = fork(__filename, ["child"]);
  forked.send("hello");
  await once(forked, "message");
  forked.disconnect();
  await once(forked, "exit");
}

async function workers() {
  const shared = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker("require('worker_threads').parentPort.postMessage(1)", { eval: true });
  await once(worker, "message");
  Atomics.wait(shared, 0, 0, 10);
  await worker.terminate();
}

async function sockets() {
  const server = http.createServer((request, response) => response.end("hello")).listen("http.sock");
  await once(server, "listening");
  await new Promise((resolve) => http.get({ socketPath: "http.sock" }, (response) => response.resume().on("end", resolve)));
  server.close();
  const echo = net.createServer((peer) => peer.pipe(peer)).listen("\0codeexec" + process.pid);
  const client = net.connect("\0codeexec" + process.pid);
  client.end("x");
  client.resume();
  await once(client, "close");
  echo.close();
  const refused = net.connect(9, "127.0.0.1");
  await once(refused, "error");
  await new Promise((resolve) => require("node:dns").lookup("localhost", resolve));
}

async function rest() {
  crypto.scryptSync("a", "b", 16);
  crypto.generateKeyPairSync("rsa", { modulusLength: 1024 });
  await crypto.subtle.digest("SHA-256", Buffer.alloc(10));
  await new Promise((resolve) => setTimeout(resolve, 10));
  for (const look of ["cpus", "freemem", "loadavg", "uptime", "userInfo", "hostname", "release", "totalmem", "getPriority"]) os[look]();
  os.setPriority(1);
  process.on("SIGUSR2", () => {});
  process.kill(process.pid, "SIGUSR2");
  process.hrtime.bigint();
  process.resourceUsage();
  process.umask(0o22);
  process.chdir(".");
  try { os.networkInterfaces(); } catch { /* refused in the sandbox */ }
  const bytes = Uint8Array.from([0, 97, 115, 109, 1, 0, 0, 0]);
  await WebAssembly.instantiate(bytes);
  let hot = 0;
  for (let index = 0; index < 1e7; index++) hot += Math.sqrt(index);
  global.gc?.();
  return hot;
}

if (process.argv[2] === "child") {
  process.on("message", (message) => process.send(message));
} else {
  (async () => {
    for (const part of [files, children, workers, sockets, rest]) await part();
  })();
}
