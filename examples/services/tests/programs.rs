//! The programs do what their documentation says, as processes of their own.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Router, routing};
use fairlock::{Fence, LockManager};
use fairlock_testkit::{Postgres, Server, eventually};
use sqlx::Connection;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_postgres::NoTls;

/// Far longer than any of it takes, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(60);

/// A program that runs, and what it prints.
struct Program {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(path: &str, environment: &[(&str, &str)]) -> Program {
        let mut command = Command::new(path);
        let command = command.env_remove("REDIS_URL").envs(environment.iter().copied());
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Program { process, lines }
    }

    /// The rest of the next line that has this text.
    async fn line_with(&mut self, text: &str) -> String {
        let find = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some((_, rest)) = line.split_once(text) {
                    return rest.to_owned();
                }
            }
            panic!("it never prints {text:?}");
        };
        timeout(LIMIT, find).await.unwrap()
    }

    /// All that it prints until it ends well.
    async fn output(mut self) -> String {
        let read = async {
            let mut output = String::new();
            while let Some(line) = self.lines.next_line().await.unwrap() {
                output += &line;
                output.push('\n');
            }
            assert!(self.process.wait().await.unwrap().success(), "{output}");
            output
        };
        timeout(LIMIT, read).await.unwrap()
    }

    async fn terminate(&self) {
        let id = self.process.id().unwrap().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .await
                .unwrap()
                .success()
        );
    }
}

/// Sends a request, and goes on.
async fn send(address: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// What the HTTP service answers.
async fn ask(address: &str, request: &str) -> String {
    let mut stream = send(address, request).await;
    let mut response = String::new();
    timeout(LIMIT, stream.read_to_string(&mut response))
        .await
        .unwrap()
        .unwrap();
    response
}

fn assert_try_again(response: &str) {
    let [is_503, says_when] = ["HTTP/1.1 503", "retry-after: "].map(|part| response.contains(part));
    assert!(is_503 && says_when, "{response}");
}

#[tokio::test]
async fn web_service_charges_an_invoice_once_at_a_time_and_finishes_what_it_began() {
    let mut web = Program::start(env!("CARGO_BIN_EXE_web"), &[("PORT", "0")]);
    let address = web.line_with("listening on ").await;
    let (one, other) = tokio::join!(
        ask(&address, "POST /invoices/42/charge"),
        ask(&address, "POST /invoices/42/charge")
    );
    for charged in [&one, &other] {
        assert!(
            charged.starts_with("HTTP/1.1 200") && charged.contains("charged under fence"),
            "{charged}"
        );
    }
    assert_ne!(one, other, "each has a fence of its own");

    // A request that has begun when the service is asked to end is answered. A charge is made to its end,
    // though its client has hung up.
    let last = tokio::spawn({
        let address = address.clone();
        async move { ask(&address, "POST /invoices/7/charge").await }
    });
    let hung_up = send(&address, "POST /invoices/8/charge").await;
    web.line_with("charging invoice 8").await;
    drop(hung_up);
    web.terminate().await;
    assert!(last.await.unwrap().starts_with("HTTP/1.1 200"));
    let output = web.output().await;
    assert!(
        output.contains("charged invoice 8") && output.contains("closed"),
        "{output}"
    );
}

#[tokio::test]
async fn web_service_bears_clients_that_hang_up_locks_that_are_busy_and_servers_that_are_away() {
    let server = Server::start().await;
    let url = server.url();
    let mut web = Program::start(env!("CARGO_BIN_EXE_web"), &[("PORT", "0"), ("REDIS_URL", &url)]);
    let address = web.line_with("listening on ").await;
    let is_ready = async || ask(&address, "GET /ready").await.starts_with("HTTP/1.1 200");
    eventually("ready", LIMIT, is_ready).await;

    let hung_up = send(&address, "POST /invoices/1/charge").await;
    web.line_with("charging invoice 1").await;
    drop(hung_up);
    web.line_with("charged invoice 1").await;

    let elsewhere = LockManager::connect(&url).await.unwrap();
    let invoice = elsewhere.lock("invoice:2");
    let held = invoice.acquire().await.unwrap();
    assert_try_again(&ask(&address, "POST /invoices/2/charge").await);
    // A client that hangs up while it waits leaves the queue.
    let hung_up = send(&address, "POST /invoices/2/charge").await;
    let waiting = async || invoice.status().await.unwrap().waiting;
    eventually("it waits", LIMIT, async || waiting().await == 1).await;
    drop(hung_up);
    eventually("it has left", LIMIT, async || waiting().await == 0).await;
    held.release().await.unwrap();

    let metrics = ask(&address, "GET /metrics").await;
    let left = r#"fairlock_acquire_duration_seconds_count{group="invoice",outcome="cancelled""#;
    let busy = r#"fairlock_acquire_duration_seconds_count{group="invoice",outcome="timeout""#;
    for part in [
        "HTTP/1.1 200",
        "text/plain",
        "# TYPE fairlock_guards_held gauge",
        left,
        busy,
    ] {
        assert!(metrics.contains(part), "{part}: {metrics}");
    }

    server.kill();
    assert_try_again(&ask(&address, "POST /invoices/3/charge").await);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(is_ready().await, "while the server is away for a moment");
    server.restart().await;
    let charged = async || {
        ask(&address, "POST /invoices/3/charge")
            .await
            .starts_with("HTTP/1.1 200")
    };
    eventually("charges again", LIMIT, charged).await;

    web.terminate().await;
    assert!(web.output().await.contains("closed"));
}

#[tokio::test]
async fn web_service_is_not_ready_before_its_lock_server_has_answered() {
    // Nobody listens there.
    let environment = [("PORT", "0"), ("REDIS_URL", "redis://127.0.0.1:1")];
    let mut web = Program::start(env!("CARGO_BIN_EXE_web"), &environment);
    let address = web.line_with("listening on ").await;
    let ready = ask(&address, "GET /ready").await;
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
}

/// A payment provider. It takes a payment once for each key, and answers once the test lets it.
struct Provider {
    taken: Mutex<Vec<String>>,
    arrived: mpsc::UnboundedSender<String>,
    answers: watch::Sender<bool>,
}

impl Provider {
    /// Returns the address, and the keys of all requests.
    async fn start() -> (Arc<Provider>, String, mpsc::UnboundedReceiver<String>) {
        let (arrived, requests) = mpsc::unbounded_channel();
        let provider = Arc::new(Provider {
            taken: Mutex::default(),
            arrived,
            answers: watch::channel(false).0,
        });
        let app = Router::new()
            .route("/charges", routing::post(Provider::charge))
            .with_state(Arc::clone(&provider));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, app).await });
        (provider, address, requests)
    }

    async fn charge(State(provider): State<Arc<Provider>>, headers: HeaderMap) -> String {
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        let receipt = {
            let mut taken = provider.taken.lock().unwrap();
            let known = taken.iter().position(|taken| *taken == key);
            known.unwrap_or_else(|| {
                taken.push(key.clone());
                taken.len() - 1
            })
        };
        provider.arrived.send(key).unwrap();
        let mut answers = provider.answers.subscribe();
        answers.wait_for(|answers| *answers).await.unwrap();
        format!("receipt {receipt}")
    }
}

/// `None` where PostgreSQL is not installed.
async fn started_postgres() -> Option<Postgres> {
    if !Postgres::is_installed() {
        eprintln!("skipped: PostgreSQL is not installed");
        return None;
    }
    let started = tokio::task::spawn_blocking(|| Postgres::start().unwrap());
    Some(started.await.unwrap())
}

#[tokio::test]
async fn payment_of_a_killed_holder_is_taken_once() {
    let Some(postgres) = started_postgres().await else {
        return;
    };
    let server = Server::start().await;
    let (provider, address, mut requests) = Provider::start().await;
    let environment = [
        ("DATABASE_URL", &*postgres.url),
        ("PROVIDER", &*address),
        ("REDIS_URL", &server.url()),
    ];
    let start = || Program::start(env!("CARGO_BIN_EXE_sql"), &environment);
    let mut request = async || timeout(LIMIT, requests.recv()).await.unwrap().unwrap();

    // The provider takes the payment, and the holder is killed before it hears of that.
    let mut first = start();
    let of_first: i64 = first.line_with("claiming under fence ").await.parse().unwrap();
    let key = request().await;
    first.process.kill().await.unwrap();

    // The next holder cannot know that, and calls again.
    let mut second = start();
    let of_second: i64 = second.line_with("claiming under fence ").await.parse().unwrap();
    assert!(of_first < of_second, "{of_first} {of_second}");
    assert_eq!(request().await, key, "a second call with the key of the first");

    // Had the first holder been paused, it would go on now. The statements of the page refuse it.
    let (database, connection) = tokio_postgres::connect(&postgres.url, NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let blocks = blocks(include_str!("../../../docs/once.md"), "sql");
    let [_, claim, confirm] = &blocks[..] else {
        panic!("a table and two statements: {blocks:?}")
    };
    let stale = database.query_opt(*claim, &[&42_i64, &of_first]).await.unwrap();
    assert!(stale.is_none(), "a stale claim");
    let stale = database.execute(*confirm, &[&42_i64, &of_first, &"stale"]).await;
    assert_eq!(stale.unwrap(), 0, "a stale confirmation");
    let paid = "SELECT paid, receipt FROM payment WHERE id = 42";
    assert!(!database.query_one(paid, &[]).await.unwrap().get::<_, bool>(0));

    provider.answers.send_replace(true);
    assert!(second.output().await.contains("paid: receipt 0"));
    let row = database.query_one(paid, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), (true, "receipt 0"));
    assert_eq!(*provider.taken.lock().unwrap(), [key], "taken once");

    // A later holder finds it paid, and does not call.
    assert!(start().output().await.contains("paid: receipt 0"));
    assert!(requests.try_recv().is_err(), "a third call");

    drop(database);
    connection.await.unwrap().unwrap();
    tokio::task::spawn_blocking(|| drop(postgres)).await.unwrap();
}

/// Two holders add to a balance of 100. The first is frozen between its read and its write, and the next one
/// reads meanwhile. Returns what each of their writes changed, and the balance.
async fn after_a_freeze(database: &tokio_postgres::Client, read: &str, write: &str) -> (u64, u64, i64) {
    let begin = "DROP TABLE IF EXISTS account;
        CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
        INSERT INTO account VALUES (7, 100)";
    database.batch_execute(begin).await.unwrap();
    let (frozen, next) = (1_i64, 2_i64);
    let read = async |fence: i64| -> i64 {
        let row = database.query_one(read, &[&7_i64, &fence]).await.unwrap();
        row.get("balance")
    };
    let write = async |fence: i64, balance: i64| {
        let changed = database.execute(write, &[&7_i64, &fence, &balance]).await;
        changed.unwrap()
    };
    let (of_frozen, of_next) = (read(frozen).await, read(next).await);
    let by_frozen = write(frozen, of_frozen + 10).await;
    let by_next = write(next, of_next + 1).await;
    (by_frozen, by_next, read(next).await)
}

#[tokio::test]
async fn statements_of_the_guide_accept_no_write_that_the_next_holder_would_undo() {
    let Some(postgres) = started_postgres().await else {
        return;
    };
    let (database, connection) = tokio_postgres::connect(&postgres.url, NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let blocks = blocks(include_str!("../../../docs/guide.md"), "sql");
    let [read, write] = &blocks[..] else {
        panic!("two statements: {blocks:?}")
    };
    assert_eq!(after_a_freeze(&database, read, write).await, (0, 1, 101));
    // Noted by the writes alone, the fence has both accepted, and the first one lost.
    let read = "SELECT balance FROM account WHERE id = $1 AND $2::BIGINT > 0";
    let write = "UPDATE account SET balance = $3, fence = $2 WHERE id = $1 AND fence <= $2";
    assert_eq!(after_a_freeze(&database, read, write).await, (1, 1, 101));

    drop(database);
    connection.await.unwrap().unwrap();
    tokio::task::spawn_blocking(|| drop(postgres)).await.unwrap();
}

#[tokio::test]
async fn a_fence_is_a_column_of_sqlx_and_of_postgres_types() {
    let Some(postgres) = started_postgres().await else {
        return;
    };
    let fence = LockManager::in_memory().lock("a").await.unwrap().fence();

    let (database, connection) = tokio_postgres::connect(&postgres.url, NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let table = "CREATE TABLE job (id BIGINT, fence BIGINT)";
    database.batch_execute(table).await.unwrap();
    let write = "INSERT INTO job VALUES (1, $1), (2, NULL), (3, 0)";
    database.execute(write, &[&fence]).await.unwrap();
    let read = "SELECT fence FROM job ORDER BY id";
    let rows = database.query(read, &[]).await.unwrap();
    assert_eq!(
        (rows[0].get::<_, Fence>(0), rows[1].get(0)),
        (fence, None::<Fence>)
    );
    assert!(rows[2].try_get::<_, Fence>(0).is_err(), "0 is no fence");
    drop(database);
    connection.await.unwrap().unwrap();

    let mut database = sqlx::PgConnection::connect(&postgres.url).await.unwrap();
    let select = sqlx::query_as::<_, (Fence, i64)>("SELECT fence, id FROM job WHERE fence = $1");
    let row = select.bind(fence).fetch_one(&mut database).await.unwrap();
    assert_eq!(row, (fence, 1));
    let select = sqlx::query_scalar::<_, Option<Fence>>("SELECT fence FROM job WHERE id = $1");
    assert_eq!(select.bind(2_i64).fetch_one(&mut database).await.unwrap(), None);
    let select = sqlx::query_scalar::<_, Fence>("SELECT fence FROM job WHERE id = $1");
    let none = select.bind(3_i64).fetch_one(&mut database).await;
    assert!(none.unwrap_err().to_string().contains("fence 0: must be from 1"));
    database.close().await.unwrap();
    tokio::task::spawn_blocking(|| drop(postgres)).await.unwrap();
}

/// The blocks of code in this language on a page.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    let after = page.split(&begin).skip(1);
    after.map(|after| after.split("```").next().unwrap()).collect()
}

#[test]
fn pages_show_the_code_of_the_programs() {
    let [once, web] = [
        include_str!("../../../docs/once.md"),
        include_str!("../../../docs/web.md"),
    ];
    let pages = [
        (once, include_str!("../src/bin/sql.rs"), 4),
        (web, include_str!("../src/bin/web.rs"), 7),
    ];
    // However it is indented.
    let lines = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    for (page, program, count) in pages {
        let shown = [blocks(page, "rust,ignore"), blocks(page, "sql")].concat();
        for block in &shown {
            assert!(lines(program).contains(lines(block).trim_end()), "{block}");
        }
        assert_eq!(shown.len(), count, "{shown:?}");
    }
}

#[tokio::test]
async fn job_on_the_hour_is_done_by_one_instance() {
    let output = Program::start(env!("CARGO_BIN_EXE_cron"), &[]).output().await;
    assert_eq!(output.matches("cleaning up").count(), 1, "{output}");
    assert_eq!(output.matches("another instance does it").count(), 2, "{output}");
}

/// Two instances of a service schedule the job.
async fn each_firing_is_done_once(program: &str) {
    let server = Server::start().await;
    let url = server.url();
    let instances = [(); 2].map(|()| Program::start(program, &[("REDIS_URL", &url)]));
    // Long enough for three firings, on a busy machine too.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let mut firings = Vec::new();
    for instance in instances {
        instance.terminate().await;
        let output = instance.output().await;
        let lines = output
            .lines()
            .map(|line| line.strip_prefix("report of ").unwrap());
        firings.extend(lines.map(|firing| firing.parse::<u64>().unwrap()));
    }
    firings.sort_unstable();
    assert!(firings.len() >= 3, "{firings:?}");
    assert!(firings.windows(2).all(|pair| pair[0] < pair[1]), "{firings:?}");
}

#[tokio::test]
async fn job_of_tokio_cron_scheduler_is_done_once_at_each_firing() {
    each_firing_is_done_once(env!("CARGO_BIN_EXE_cron_scheduler")).await;
}

#[tokio::test]
async fn job_of_apalis_is_done_once_at_each_firing() {
    each_firing_is_done_once(env!("CARGO_BIN_EXE_apalis")).await;
}

#[tokio::test]
async fn follower_leads_once_the_leader_stops_or_dies() {
    let server = Server::start().await;
    let url = server.url();
    let start = || Program::start(env!("CARGO_BIN_EXE_leader"), &[("REDIS_URL", &url)]);
    let fence = |rest: String| rest.trim().parse::<u64>().unwrap();

    let mut first = start();
    let of_first = fence(first.line_with("leading, fence ").await);
    let mut second = start();
    second.line_with("waiting to lead").await;
    first.terminate().await;
    let of_second = fence(second.line_with("leading, fence ").await);
    assert!(first.output().await.contains("resigned"));

    let mut third = start();
    third.line_with("waiting to lead").await;
    second.process.kill().await.unwrap();
    let of_third = fence(third.line_with("leading, fence ").await);
    assert!(
        of_first < of_second && of_second < of_third,
        "{of_first} {of_second} {of_third}"
    );
}

#[tokio::test]
async fn missing_entry_is_computed_once() {
    let output = Program::start(env!("CARGO_BIN_EXE_cache"), &[]).output().await;
    assert_eq!(output, "50 requests, computed 1 times\n");
}

#[tokio::test]
async fn settlement_goes_on_without_one_of_three_servers_and_stops_without_two() {
    let servers = [
        Server::start().await,
        Server::start().await,
        Server::start().await,
    ];
    let urls = servers.each_ref().map(Server::url).join(",");
    let mut quorum = Program::start(env!("CARGO_BIN_EXE_quorum"), &[("QUORUM_URLS", &urls)]);
    let fence = |rest: String| rest.trim().parse::<u64>().unwrap();
    let first = fence(quorum.line_with("settling under fence ").await);
    servers[1].kill();
    let second = fence(quorum.line_with("settling under fence ").await);
    assert!(first < second);
    servers[2].kill();
    quorum
        .line_with("waiting: \"settlement\": 2 of 3 servers are needed")
        .await;
    servers[1].restart().await;
    // The server that is back grants nothing at first.
    let third = fence(quorum.line_with("settling under fence ").await);
    assert!(second < third);
    quorum.terminate().await;
    assert!(quorum.output().await.contains("closed"));
}
