//! Tests of the attempts at the addresses of a name.

use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

use fairlock_testkit::{Proxy, Server as TestServer, free_port};
use tokio::time::Instant;

use super::super::tests::OPTIONS;
use super::*;
use crate::types::error::ServerError;

fn address(port: u16) -> SocketAddr {
    SocketAddr::new([127, 0, 0, 1].into(), port)
}

/// A listener that answers nothing. It either accepts no connection, as an address that leads nowhere, or
/// has the system accept it, as a proxy that is stopped.
struct Silent {
    address: SocketAddr,
    _listener: TcpListener,
    _queue: Vec<TcpStream>,
}

impl Silent {
    fn start(accepts: bool) -> Silent {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        if !accepts {
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
            queue.extend(std::iter::from_fn(connect));
        }
        Silent {
            address,
            _listener: listener,
            _queue: queue,
        }
    }
}

/// Connects to a name that has these addresses.
async fn dial_name(names: &Names, addresses: &[SocketAddr], within: Duration) -> Result<Connection, Failure> {
    dial_with(Config::default(), ALONE, names, addresses, within).await
}

const ALONE: Expected = Expected::Alone { in_quorum: false };

/// Connects within this time.
async fn dial_with(
    config: Config,
    expected: Expected,
    names: &Names,
    addresses: &[SocketAddr],
    within: Duration,
) -> Result<Connection, Failure> {
    let config = Config {
        server: ServerConfig::new_centralized("two.invalid", 7),
        ..config
    };
    let answer = names.looking_up("two.invalid", 7);
    let messages: Arc<dyn Messages> = Arc::new(());
    let dialled = dial(names, config, 2 * within / 5, expected, None, &messages);
    let told = async { drop(answer.send_replace(Some(Ok(addresses.into())))) };
    tokio::join!(dialled, told).0
}

/// Race: The first address of a name is silent.
#[tokio::test]
async fn the_second_address_of_a_name_is_in_use_within_a_second_if_the_first_is_silent() {
    let server = TestServer::start().await;
    for accepts in [false, true] {
        let silent = Silent::start(accepts);
        for within in [1_000, 2_000, 8_000].map(Duration::from_millis) {
            let (names, began) = (Names::default(), Instant::now());
            let addresses = [silent.address, address(server.port())];
            let connection = dial_name(&names, &addresses, within).await.unwrap();
            let took = began.elapsed();
            assert!(took < Duration::from_secs(1), "{took:?} of {within:?}");
            connection.line().call(&["PING"]).await.unwrap();
            // The next connection loses no time.
            assert_eq!(names.in_order(&addresses), [addresses[1], addresses[0]]);
        }
    }
}

/// A server that answers each call after this time, and what delays it.
async fn slow_server(delay: Duration) -> (TestServer, Proxy) {
    let server = TestServer::start().await;
    let proxy = Proxy::start(server.port());
    proxy.delay_down(delay);
    (server, proxy)
}

/// Race: Several addresses of a name are silent, and the server at the last one is slow.
#[tokio::test]
async fn a_slow_server_behind_silent_addresses_has_its_time() {
    let attempt_timeout = Duration::from_secs(1);
    let (_server, proxy) = slow_server(3 * attempt_timeout / 5).await;
    let silent = [(); 3].map(|()| Silent::start(true));
    let mut addresses = silent.each_ref().map(|silent| silent.address).to_vec();
    addresses.push(address(proxy.port()));
    let dialled = dial_name(&Names::default(), &addresses, 5 * attempt_timeout / 2).await;
    dialled.unwrap();
}

/// fred makes several calls, one after the other.
#[tokio::test]
async fn a_slow_server_is_connected_by_fred_too() {
    let attempt_timeout = Duration::from_secs(1);
    let (_server, proxy) = slow_server(3 * attempt_timeout / 5).await;
    let config = Config {
        server: ServerConfig::new_centralized("127.0.0.1", proxy.port()),
        ..Config::default()
    };
    let (names, began) = (Names::default(), Instant::now());
    dial_by_fred(&names, config, attempt_timeout).await.unwrap();
    let took = began.elapsed();
    assert!(
        took > attempt_timeout,
        "{took:?} is no more than one call may take"
    );
}

#[tokio::test]
async fn a_name_whose_addresses_are_all_silent_is_given_up_in_time() {
    let (silent, mute) = (Silent::start(false), Silent::start(true));
    let addresses = [silent.address, mute.address];
    let within = Duration::from_millis(600);
    let began = Instant::now();
    let failure = dial_name(&Names::default(), &addresses, within).await.err();
    let Some(Failure::Unknown(error)) = failure else {
        panic!("{failure:?}")
    };
    assert!(error.to_string().contains("two.invalid:7: no answer"), "{error}");
    assert!(began.elapsed() < within + OPTIONS.attempt_timeout);
}

#[tokio::test]
async fn a_name_of_a_dead_and_a_live_server_leads_to_the_live_one_at_once() {
    let server = TestServer::start().await;
    let addresses = [address(free_port()), address(server.port())];
    let connection = dial_name(&Names::default(), &addresses, OPTIONS.attempt_timeout).await;
    connection.unwrap().line().call(&["PING"]).await.unwrap();
}

/// A replica whose primary is away.
async fn replica() -> TestServer {
    TestServer::builder()
        .config("replicaof", "127.0.0.1 1")
        .start()
        .await
}

#[tokio::test]
async fn replicas_among_the_addresses_of_a_name_are_passed_over() {
    let (primary, replica) = (TestServer::start().await, replica().await);
    let names = Names::default();
    for (servers, expected) in [
        ([&replica, &primary], ALONE),
        ([&primary, &replica], ALONE),
        ([&replica, &primary], Expected::Primary),
    ] {
        let addresses = servers.map(|server| address(server.port()));
        let within = OPTIONS.attempt_timeout;
        let connection = dial_with(Config::default(), expected, &names, &addresses, within).await;
        let connection = connection.unwrap();
        let role = connection.line().call(&["ROLE"]).await.unwrap();
        assert!(format!("{role:?}").contains("master"), "{role:?}");
        // It has answered.
        assert_eq!(names.in_order(&addresses), addresses);
    }
}

#[tokio::test]
async fn a_name_of_a_replica_and_a_dead_server_may_lead_to_a_primary_later() {
    let replica = replica().await;
    for addresses in [[replica.port(), free_port()], [free_port(), replica.port()]] {
        let dialled = dial_name(
            &Names::default(),
            &addresses.map(address),
            OPTIONS.attempt_timeout,
        )
        .await;
        match dialled.err() {
            Some(Failure::NotExecuted(error)) => assert!(error.to_string().contains("a replica"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[cfg(any(feature = "rustls", feature = "native-tls"))]
#[tokio::test]
async fn the_certificate_at_each_address_is_for_the_name() {
    use fairlock_testkit::Authority;

    use crate::types::tls::Tls;

    if !TestServer::has_tls() {
        return eprintln!("skipped: the installed server was built without TLS");
    }
    let authority = Authority::generate();
    let silent = Silent::start(true);
    for (certified, is_accepted) in [("two.invalid", true), ("127.0.0.1", false)] {
        let (certificate, key) = authority.certify(&[certified]);
        let server = TestServer::builder()
            .tls(&authority)
            .file("tls-cert-file", &certificate)
            .file("tls-key-file", &key)
            .config("tls-auth-clients", "no")
            .start()
            .await;
        let tls = Tls::new().ca_certificates(authority.pem());
        let config = Config {
            tls: Some(super::super::tls::config(&tls).unwrap()),
            ..Config::default()
        };
        let addresses = [silent.address, address(server.tls_port().unwrap())];
        let dialled = dial_with(
            config,
            ALONE,
            &Names::default(),
            &addresses,
            OPTIONS.attempt_timeout,
        )
        .await;
        match dialled {
            Ok(connection) if is_accepted => drop(connection.line().call(&["PING"]).await.unwrap()),
            Err(Failure::Refused(_)) if !is_accepted => {}
            other => panic!("{certified}: {:?}", other.err()),
        }
    }
}

const WITHIN: Duration = Duration::from_secs(2);

fn failed() -> Result<u16, Failure> {
    Err(Failure::Unknown(ServerError::new("failed")))
}

fn refused() -> Result<u16, Failure> {
    Err(Failure::Refused(ServerError::new("refused")))
}

/// Makes attempts at addresses that answer in this way, each after so many ms. Returns the result, after how
/// many ms it was there, and when each attempt began.
async fn answers(answers: &[(u64, Result<u16, Failure>)]) -> (Result<u16, Failure>, u128, Vec<u128>) {
    let (began, starts) = (Instant::now(), Mutex::new(Vec::new()));
    let addresses = (0..).zip(answers).map(|(port, _)| address(port)).collect();
    let attempt = |address: SocketAddr| {
        starts.lock().unwrap().push(began.elapsed().as_millis());
        let (after, answer) = answers[usize::from(address.port())].clone();
        async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            answer
        }
    };
    let answer = first_to_answer(&Names::default(), addresses, WITHIN, attempt).await;
    (answer, began.elapsed().as_millis(), starts.into_inner().unwrap())
}

const NEVER: u64 = 1_000_000;

#[tokio::test(start_paused = true)]
async fn next_address_is_tried_after_a_quarter_of_a_second_of_silence() {
    let (answer, after, starts) = answers(&[(300, Ok(1)), (NEVER, Ok(2)), (NEVER, Ok(3))]).await;
    assert_eq!((answer.unwrap(), after, starts), (1, 300, vec![0, 250]));
    let (answer, after, starts) = answers(&[(NEVER, Ok(1)), (NEVER, Ok(2)), (10, Ok(3))]).await;
    assert_eq!((answer.unwrap(), after, starts), (3, 510, vec![0, 250, 500]));
    // All have their turn within one attempt.
    let (answer, _, starts) = answers(&vec![(NEVER, Ok(1)); 19]).await;
    assert_eq!((answer.unwrap(), starts.last()), (1, Some(&1_800)));
}

#[tokio::test(start_paused = true)]
async fn next_address_is_tried_at_once_when_one_fails() {
    let (answer, after, starts) = answers(&[(10, failed()), (20, failed()), (30, Ok(3))]).await;
    assert_eq!((answer.unwrap(), after, starts), (3, 60, vec![0, 10, 30]));
    let (answer, after, _) = answers(&[(10, failed()), (20, failed())]).await;
    assert!(
        matches!(answer, Err(Failure::Unknown(_))) && after == 30,
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_the_attempts() {
    let (answer, after, starts) = answers(&[(10, refused()), (10, Ok(2))]).await;
    assert!(matches!(answer, Err(Failure::Refused(_))), "{answer:?}");
    assert_eq!((after, starts), (10, vec![0]));
}
