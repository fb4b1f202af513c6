//! Real servers, each on a port of its own, that never outlive the test process.
//!
//! A small shell process is the parent of each server. It waits for a line on its standard input. The kernel
//! closes that pipe however the test process ends, even by SIGKILL. Then the shell ends the server and
//! removes its directory. As the parent of the server, it cannot kill another process that later has the same
//! id.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use crate::authority::Authority;
use crate::blocking::BlockingClient;
use crate::client::Client;
use crate::lock_summary::LockSummary;
use crate::names::{TempDir, free_port};
use crate::resp::Resp;
use crate::signal;
use crate::{clock, eventually};

const START_LIMIT: Duration = Duration::from_secs(20);

const WRAPPER: &str = r#"
dir=$1; shift
"$@" >>"$dir/server.log" 2>&1 &
pid=$!
echo "$pid"
# The shell would report what it killed.
exec 2>/dev/null
read -r order
case $order in
  term) kill -CONT "$pid"; kill -TERM "$pid" ;;
  kill) kill -KILL "$pid" ;;
  *) kill -KILL "$pid"; wait "$pid"; rm -rf "$dir" ;;
esac
wait "$pid"
"#;

/// A server on a loopback port, without persistence unless configured. It ends when this value is dropped.
#[derive(Debug)]
pub struct Server {
    binary: PathBuf,
    port: u16,
    tls_port: Option<u16>,
    /// The words before its own command line.
    prelude: Vec<String>,
    dir: TempDir,
    files: Option<Arc<TempDir>>,
    /// The first lines of a sentinel's configuration file.
    sentinel: Option<String>,
    args: Vec<String>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    wrapper: Child,
    pid: u32,
}

/// Settings of a [`Server`] that is not started yet.
#[derive(Debug)]
pub struct ServerBuilder {
    binary: PathBuf,
    args: Vec<String>,
    /// Files in the directory of the server: the setting that names each, and its content.
    files: Vec<(String, String)>,
    sentinel: Option<String>,
    tls_port: Option<u16>,
    /// By how many seconds its clock is ahead, if it has its own.
    clock: Option<i64>,
}

impl ServerBuilder {
    /// Adds a line to the configuration file, such as `config("appendonly", "yes")`.
    #[must_use]
    pub fn config(mut self, key: &str, value: &str) -> ServerBuilder {
        self.args.push(format!("--{key}"));
        if value.is_empty() {
            self.args.push(String::new());
        }
        self.args.extend(value.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds a setting whose value is a path, which may contain spaces.
    #[must_use]
    pub fn config_path(mut self, key: &str, path: &Path) -> ServerBuilder {
        self.args.push(format!("--{key}"));
        self.args.push(path.display().to_string());
        self
    }

    /// Adds a setting that names a file with this content.
    #[must_use]
    pub fn file(mut self, key: &str, content: &str) -> ServerBuilder {
        self.files.push((key.to_owned(), content.to_owned()));
        self
    }

    /// Makes the server listen by TLS as well, with a certificate of `authority`.
    #[must_use]
    pub fn tls(self, authority: &Authority) -> ServerBuilder {
        self.tls_as(authority, "127.0.0.1")
    }

    /// The same with a certificate for this name.
    #[must_use]
    pub fn tls_as(mut self, authority: &Authority, name: &str) -> ServerBuilder {
        let (certificate, key) = authority.certify(&[name]);
        self.tls_port = Some(free_port());
        self.shows(authority, &certificate, &key)
    }

    /// The same with the certificate of the authority itself.
    pub fn self_signed(mut self, authority: &Authority) -> ServerBuilder {
        self.tls_port = Some(free_port());
        self.shows(authority, authority.pem(), &authority.key())
    }

    fn shows(self, authority: &Authority, certificate: &str, key: &str) -> ServerBuilder {
        let port = self.tls_port.expect("a TLS port").to_string();
        self.file("tls-ca-cert-file", authority.pem())
            .file("tls-cert-file", certificate)
            .file("tls-key-file", key)
            .config("tls-port", &port)
    }

    /// Gives the server its own clock, which is this many seconds ahead of the machine's, or behind it if
    /// negative. This needs Linux and a C compiler.
    #[must_use]
    pub fn clock(mut self, seconds: i64) -> ServerBuilder {
        self.clock = Some(seconds);
        self
    }

    /// Runs this program instead of the installed one.
    #[must_use]
    pub fn program(mut self, program: &Path) -> ServerBuilder {
        self.binary = program.to_owned();
        self
    }

    pub async fn start(mut self) -> Server {
        // If a test is killed, this directory stays behind.
        let some = !self.files.is_empty() || self.clock.is_some();
        let files = some.then(|| Arc::new(TempDir::create()));
        let prelude = match (&files, self.clock) {
            (Some(files), Some(seconds)) => clock::prelude(files.path(), seconds),
            _ => Vec::new(),
        };
        for (key, content) in std::mem::take(&mut self.files) {
            let path = files.as_ref().expect("a directory").path().join(&key);
            std::fs::write(&path, content).expect("a file");
            self = self.config_path(&key, &path);
        }
        for _ in 0..5 {
            let server = Server {
                binary: self.binary.clone(),
                port: free_port(),
                tls_port: self.tls_port,
                prelude: prelude.clone(),
                dir: TempDir::create(),
                files: files.clone(),
                sentinel: self.sentinel.clone(),
                args: self.args.clone(),
                running: Mutex::new(None),
            };
            // A server that ended at once may have lost its port to another test, so the next port is tried.
            match server.launch().await {
                Ok(()) => return server,
                Err(log) if log.contains("ddress already in use") => {}
                Err(log) => panic!("the server does not start: {log}"),
            }
        }
        panic!("no server could get a port");
    }
}

impl Server {
    pub async fn start() -> Server {
        Server::builder().start().await
    }

    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            binary: find_binary(),
            args: Vec::new(),
            files: Vec::new(),
            sentinel: None,
            tls_port: None,
            clock: None,
        }
        .config("save", "")
        .config("appendonly", "no")
        .config("bind", "127.0.0.1")
    }

    /// A sentinel. These lines are in its configuration file, which also keeps its state.
    pub fn sentinel(lines: &str) -> ServerBuilder {
        ServerBuilder {
            binary: find_binary(),
            args: Vec::new(),
            files: Vec::new(),
            sentinel: Some(lines.to_owned()),
            tls_port: None,
            clock: None,
        }
    }

    /// Whether a server is installed.
    pub fn is_installed() -> bool {
        installed().is_some()
    }

    /// Whether the installed server was built with TLS. If it was not, it reports that, or does not know the
    /// setting. Either way it ends at once, because it has no other port to listen on and no certificate.
    pub fn has_tls() -> bool {
        let by_tls = ["--port", "0", "--tls-port", &free_port().to_string()];
        let output = Command::new(find_binary())
            .args(by_tls)
            .output()
            .expect("a server");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let without = ["Bad directive", "Failed finding TLS support"];
        !without.iter().any(|words| said.contains(words))
    }

    /// A server that all tests of this binary share if they need only a key prefix of their own.
    pub async fn shared() -> &'static Server {
        static SHARED: OnceCell<Server> = OnceCell::const_new();
        SHARED.get_or_init(Server::start).await
    }

    /// Three servers that all tests of this binary share, as a quorum.
    pub async fn shared_quorum() -> &'static [Server; 3] {
        static SHARED: OnceCell<[Server; 3]> = OnceCell::const_new();
        let start = async || {
            [
                Server::start().await,
                Server::start().await,
                Server::start().await,
            ]
        };
        SHARED.get_or_init(start).await
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The TLS port, if it listens on one.
    pub fn tls_port(&self) -> Option<u16> {
        self.tls_port
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process id of the server itself.
    pub fn pid(&self) -> u32 {
        self.running
            .lock()
            .unwrap()
            .as_ref()
            .expect("a running server")
            .pid
    }

    /// Ends the server as an operator would (SIGTERM).
    pub fn stop(&self) {
        self.end("term\n");
    }

    /// Ends the server as a power failure would (SIGKILL).
    pub fn kill(&self) {
        self.end("kill\n");
    }

    /// Starts the server again on the same port and directory. [`stop`](Server::stop)s it before if it runs.
    pub async fn restart(&self) {
        self.stop();
        if let Err(log) = self.launch().await {
            panic!("the server does not start again: {log}");
        }
    }

    /// Stops the process (SIGSTOP): connections stay open, and the server does not answer.
    pub fn pause(&self) {
        signal::stop(self.pid());
    }

    pub fn resume(&self) {
        signal::cont(self.pid());
    }

    /// A connection for several commands, for subscriptions, or for counting.
    pub async fn client(&self) -> Client {
        Client::connect(self.port).await.expect("a server that accepts")
    }

    /// Sets the clock of a server that has its own, and waits until the server has noticed: Valkey 9.1 asks
    /// the machine for the time only now and then.
    pub async fn set_clock(&self, seconds: i64) {
        clock::set(self.files.as_ref().expect("a clock of its own").path(), seconds);
        let has_noticed = async || {
            let time = self.command(&["TIME"]).await.array()[0].int();
            (time - clock::machine_seconds() - seconds).abs() <= 2
        };
        eventually(
            "the server notices its clock",
            Duration::from_secs(5),
            has_noticed,
        )
        .await;
    }

    /// Sends one command on a connection of its own.
    pub async fn command(&self, words: &[&str]) -> Resp {
        self.client()
            .await
            .command(words)
            .await
            .expect("a server that answers")
    }

    /// Runs `ACL SETUSER <user> …`. Also lets the user name its library, where the server knows that right.
    pub async fn set_user(&self, words: &[&str]) {
        assert_eq!(self.command(words).await.text(), "OK", "{words:?}");
        // Servers before 7.2 answer with an error.
        self.command(&["ACL", "SETUSER", words[2], "+client|setinfo"])
            .await;
    }

    /// Sends one command, which must succeed, on a blocking connection of its own. The words of the command,
    /// and the elements of the reply, are separated by spaces.
    pub fn tell(&self, command: &str) -> String {
        let mut client = BlockingClient::connect(("127.0.0.1", self.port)).expect("a server that accepts");
        let words: Vec<_> = command.split(' ').collect();
        let reply = client.command(&words).expect("a server that answers");
        assert!(!reply.is_error(), "{command}: {reply}");
        reply.to_string()
    }

    /// The summary of the lock with this key.
    pub async fn lock_summary(&self, key: &str) -> LockSummary {
        LockSummary::of(&self.command(&LockSummary::command(key)).await)
    }

    /// All keys that start with `prefix`, sorted.
    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        let mut keys = self.command(&["KEYS", &format!("{prefix}*")]).await.texts();
        keys.sort();
        keys
    }

    /// The lines of a section of `INFO`.
    pub async fn info(&self, section: &str) -> HashMap<String, String> {
        info_lines(self.command(&["INFO", section]).await.text())
    }

    /// How often the server has run each command since it started, by lower-case name.
    pub async fn calls(&self) -> HashMap<String, u64> {
        let calls = |(key, value): (String, String)| {
            let name = key.strip_prefix("cmdstat_")?.to_owned();
            let count = value.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            Some((name, count))
        };
        self.info("commandstats")
            .await
            .into_iter()
            .filter_map(calls)
            .collect()
    }

    /// Closes the connections of all clients but replicas.
    pub async fn kill_clients(&self) {
        for kind in ["normal", "pubsub"] {
            self.command(&["CLIENT", "KILL", "TYPE", kind]).await.int();
        }
    }

    fn end(&self, order: &str) {
        if let Some(mut running) = self.running.lock().unwrap().take() {
            if let Some(mut pipe) = running.wrapper.stdin.take() {
                let _ = pipe.write_all(order.as_bytes());
            }
            let _ = running.wrapper.wait();
        }
    }

    /// Starts the process and waits until it answers. The error is what the server logged.
    async fn launch(&self) -> Result<(), String> {
        let sentinel = self.sentinel.as_ref().map(|lines| {
            let file = self.dir.path().join("sentinel.conf");
            if !file.exists() {
                std::fs::write(&file, format!("port {}\nbind 127.0.0.1\n{lines}", self.port))
                    .expect("a file");
            }
            [file.into_os_string(), "--sentinel".into()]
        });
        let mut wrapper = Command::new("sh")
            .args(["-c", WRAPPER, "sh"])
            .arg(self.dir.path())
            .args(&self.prelude)
            .arg(&self.binary)
            .args(sentinel.into_iter().flatten())
            .args(["--port", &self.port.to_string(), "--dir"])
            .arg(self.dir.path())
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C in the terminal must only reach the test: the shell must live on to clean up.
            .process_group(0)
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let stdout = wrapper.stdout.take().expect("a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the server's process id");
        let pid = line.trim().parse().expect("a process id");
        *self.running.lock().unwrap() = Some(Running { wrapper, pid });

        let start = Instant::now();
        while start.elapsed() < START_LIMIT {
            if self.answers_as(pid).await {
                return Ok(());
            }
            let log = self.log();
            if log.contains("ddress already in use") || log.contains("FATAL CONFIG") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.kill();
        Err(self.log())
    }

    /// Whether the process that answers on the port is this one, and has loaded its data.
    async fn answers_as(&self, pid: u32) -> bool {
        let asked = async {
            let mut client = Client::connect(self.port).await.ok()?;
            if matches!(client.command(&["PING"]).await.ok()?, Resp::Error(text) if text.starts_with("LOADING"))
            {
                return None;
            }
            match client.command(&["INFO", "server"]).await.ok()? {
                Resp::Text(info) => Some(info_lines(&info).get("process_id") == Some(&pid.to_string())),
                // Only a user with rights may ask for the process id. An error of this kind shows a running
                // server, most likely this one.
                Resp::Error(text) => Some(text.starts_with("NOAUTH") || text.starts_with("NOPERM")),
                _ => None,
            }
        };
        tokio::time::timeout(Duration::from_secs(1), asked)
            .await
            .ok()
            .flatten()
            .unwrap_or(false)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end("");
    }
}

pub(crate) fn info_lines(text: &str) -> HashMap<String, String> {
    let pair = |line: &str| {
        line.split_once(':')
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(pair).collect()
}

fn find_binary() -> PathBuf {
    installed().expect("redis-server or valkey-server on the PATH: run scripts/install-server")
}

fn installed() -> Option<PathBuf> {
    if let Some(binary) = std::env::var_os("FAIRLOCK_TEST_SERVER") {
        return Some(binary.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["redis-server", "valkey-server"]
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)))
        .find(|candidate| candidate.is_file())
}
