//! Connections by TLS, by a Unix socket, and to a numbered database. Each test makes a whole hand-over, with
//! the calls and messages of two clients.

use std::time::Duration;

use fairlock::{Error, LockManager, LockManagerBuilder, Quorum, Tls};
#[cfg(target_os = "linux")]
use fairlock_testkit::Process;
use fairlock_testkit::{Server, TempDir, eventually};

const LIMIT: Duration = Duration::from_secs(10);

fn client() -> LockManagerBuilder {
    LockManager::builder().server_timeout(Duration::from_secs(5))
}

/// Makes one client hand the lock over to another one that waits.
async fn hand_over(settings: &LockManagerBuilder, url: &str) {
    let first = settings.clone().connect(url).await.unwrap();
    let second = settings.clone().connect(url).await.unwrap();
    let held = first.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(second.lock("a").acquire());
    eventually("one waits", LIMIT, async || {
        first.lock("a").status().await.unwrap().waiting == 1
    })
    .await;
    // Before the subscription is up, the waiter would be skipped and would have to poll.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let fence = held.fence();
    held.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.fence() > fence);
    assert_eq!(second.stats().handed_over, 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn server_lists_the_connections_by_label_library_and_version() {
    let server = Server::start().await;
    let locks = client().label("web-7").connect(&server.url()).await.unwrap();
    let _guard = locks.lock("a").acquire().await.unwrap();
    let named = async || {
        let list = server.command(&["CLIENT", "LIST"]).await;
        let lines = list.text().lines().map(str::to_owned);
        lines
            .filter(|line| line.contains(" name=web-7 "))
            .collect::<Vec<_>>()
    };
    assert_eq!(named().await.len(), 1);
    for line in named().await {
        // Servers before 7.2 do not know libraries.
        let library = concat!("lib-name=fairlock lib-ver=", env!("CARGO_PKG_VERSION"));
        assert!(line.contains(library) || !line.contains("lib-name="), "{line}");
    }
}

#[tokio::test]
async fn a_user_without_a_password_is_refused_before_anything_is_sent() {
    for url in [
        "redis://locks@127.0.0.1:1",
        "redis://locks:@127.0.0.1:1",
        "unix://locks@localhost/nowhere.sock",
        "redis-cluster://locks@127.0.0.1:1",
        "redis-sentinel://locks@127.0.0.1:1?sentinelServiceName=main",
    ] {
        let error = client().connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains("redis://user:password@"), "{error}");
    }
    let urls = [
        "redis://locks@127.0.0.1:1",
        "redis://127.0.0.1:2",
        "redis://127.0.0.1:3",
    ];
    let error = LockManager::builder()
        .connect_quorum(Quorum::of(urls))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
}

/// The memory of this process in RAM, in bytes.
#[cfg(target_os = "linux")]
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = size.unwrap().trim().strip_suffix(" kB").unwrap();
    1024 * kibibytes.parse::<u64>().unwrap()
}

/// Connects, and says how much memory each further client takes.
#[cfg(target_os = "linux")]
#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn many_clients() {
    let Some(mut role) = fairlock_testkit::role() else {
        return;
    };
    let (url, count) = (role.arg("url"), 64_u64);
    let _first = client().connect(&url).await.unwrap();
    let before = own_memory();
    let mut clients = Vec::new();
    for _ in 0..count {
        let locks = client().connect(&url).await.unwrap();
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        clients.push(locks);
    }
    role.say(&((own_memory() - before) / count).to_string());
    role.heard().await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_connection_pair_takes_half_a_mebibyte_at_most() {
    let server = Server::start().await;
    let role = "connecting::many_clients";
    let mut client = Process::spawn(role, &[("url", &server.url())]);
    let each: u64 = client.line().await.parse().unwrap();
    assert!(each <= 512 * 1024, "{each} bytes");
}

#[tokio::test]
async fn label_is_kept_for_a_minute_after_it_was_set() {
    let server = Server::start().await;
    let locks = client().prefix("shop").connect(&server.url()).await.unwrap();
    let mut keys = Vec::new();
    eventually("the label is there", LIMIT, async || {
        keys = server.keys("shop:label:").await;
        !keys.is_empty()
    })
    .await;
    let left = server.command(&["PTTL", &keys[0]]).await.int();
    assert!(left > 30_000 && left <= 60_000, "{left} ms");
    drop(locks);
}

#[tokio::test]
async fn a_database_has_locks_of_its_own() {
    let server = Server::start().await;
    hand_over(&client(), &format!("{}/2", server.url())).await;
    let in_two = client().connect(&format!("{}/2", server.url())).await.unwrap();
    let in_three = client().connect(&format!("{}/3", server.url())).await.unwrap();
    let _two = in_two.lock("a").acquire().await.unwrap();
    let _three = in_three.lock("a").acquire().await.unwrap();
    let keyspace = server.info("keyspace").await;
    assert!(keyspace.contains_key("db2") && keyspace.contains_key("db3"));
    assert!(!keyspace.contains_key("db0"));
    let error = client()
        .connect(&format!("{}/99", server.url()))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert_eq!(
        error.to_string().matches("database 99: must be less").count(),
        1,
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_does_not_speak_resp3_is_refused() {
    // Redis before 6.0, proxies, and a server that accepts anything.
    for said in [
        "-ERR unknown command 'HELLO'",
        "-NOPROTO sorry",
        "-ERR unsupported command",
        "+OK",
    ] {
        let port = answering(said);
        let error = client()
            .connect(&format!("redis://127.0.0.1:{port}"))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        assert!(error.to_string().contains("must speak RESP3"), "{error}");
    }
}

/// A server that answers each command with this line. Returns its port.
fn answering(line: &'static str) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut writer = stream.unwrap();
            let mut reader = std::io::BufReader::new(writer.try_clone().unwrap());
            while fairlock_testkit::Resp::read_from(&mut reader).is_ok() {
                if std::io::Write::write_all(&mut writer, format!("{line}\r\n").as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    port
}

#[tokio::test]
async fn an_ipv6_address_carries_a_hand_over() {
    let server = Server::builder().config("bind", "127.0.0.1 -::1").start().await;
    if std::net::TcpStream::connect(("::1", server.port())).is_err() {
        return eprintln!("skipped: this machine has no IPv6");
    }
    hand_over(&client(), &format!("redis://[::1]:{}", server.port())).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_carries_a_hand_over() {
    let place = TempDir::create();
    let socket = place.path().join("a b.sock");
    let server = Server::builder().config_path("unixsocket", &socket).start().await;
    server.command(&["CONFIG", "SET", "requirepass", "p@ss"]).await;
    let path = socket.display().to_string().replace(' ', "%20");
    hand_over(&client(), &format!("unix://:p%40ss@localhost{path}?db=1")).await;
    let error = client()
        .connect(&format!("redis+unix://{path}"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    drop(server);
    let settings = client().server_timeout(Duration::from_millis(200));
    let error = settings.connect(&format!("unix://{path}")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("a b.sock"), "{error}");
}

#[tokio::test]
async fn tls_settings_for_a_url_without_tls_are_refused_before_anything_is_sent() {
    let error = client()
        .tls(Tls::new())
        .connect("redis://127.0.0.1:1")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert!(error.to_string().contains("rediss://"), "{error}");
}

#[test]
fn keys_and_certificates_are_never_shown() {
    let tls = Tls::new()
        .ca_certificates("s3cret")
        .client_certificate("s3cret", "s3cret");
    let builder = client().tls(tls.clone());
    for bytes in ["s3cret".to_owned(), format!("{:?}", "s3cret".as_bytes())] {
        let bytes = bytes.trim_matches(['[', ']']);
        assert!(!format!("{tls:?} {builder:?}").contains(bytes));
    }
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
#[tokio::test]
async fn tls_without_its_feature_is_refused_and_the_feature_named() {
    let error = client().connect("rediss://127.0.0.1:1").await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert!(error.to_string().contains("feature `rustls`"), "{error}");
}

#[cfg(all(feature = "diagnose", any(feature = "rustls", feature = "native-tls")))]
mod by_tls {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fairlock::diagnose::{self, Verdict};
    use fairlock_testkit::{Authority, Resp, Sentinels, Setup};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// A TLS server with a certificate of `authority`, and its URL; `None` if the installed server was built
    /// without TLS.
    async fn server(authority: &Authority, clients: &str) -> Option<(Server, String)> {
        if !Server::has_tls() {
            eprintln!("skipped: the installed server was built without TLS");
            return None;
        }
        let builder = Server::builder().tls(authority);
        let server = builder.config("tls-auth-clients", clients).start().await;
        let url = format!("rediss://127.0.0.1:{}", server.tls_port().unwrap());
        Some((server, url))
    }

    #[track_caller]
    fn refused<T>(result: Result<T, Error>) -> String {
        match result {
            Err(error @ Error::Refused(_)) => error.to_string(),
            Err(error) => panic!("{error:?}"),
            Ok(_) => panic!("not refused"),
        }
    }

    #[tokio::test]
    async fn a_hand_over_as_a_user_with_a_password() {
        let authority = Authority::generate();
        let Some((server, url)) = server(&authority, "no").await else {
            return;
        };
        let rights = "ACL SETUSER locks on >p@ss ~* &* +@all";
        server.command(&rights.split(' ').collect::<Vec<_>>()).await;
        server.command(&["ACL", "SETUSER", "default", "off"]).await;
        let settings = client().tls(Tls::new().ca_certificates(authority.pem()));
        hand_over(&settings, &url.replace("//", "//locks:p%40ss@")).await;
        hand_over(&settings, &url.replace("rediss://", "valkeys://locks:p%40ss@")).await;
        refused(settings.connect(&url.replace("//", "//locks:wrong@")).await);
    }

    #[tokio::test]
    async fn server_without_a_trusted_certificate_is_refused_at_once() {
        let authority = Authority::generate();
        let Some((_server, url)) = server(&authority, "no").await else {
            return;
        };
        let started = std::time::Instant::now();
        let another = Tls::new().ca_certificates(Authority::generate().pem());
        let message = refused(client().tls(another).connect(&url).await);
        assert!(
            message.contains("TLS") && message.contains("127.0.0.1"),
            "{message}"
        );
        let message = refused(client().connect(&url).await);
        assert!(message.contains("Tls::ca_certificates"), "{message}");
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "the connection was tried again"
        );
    }

    /// Ends each connection once the client has begun the handshake. With unread bytes, that is a reset.
    /// Returns the URL, and the count of the connections.
    async fn breaks_off(by_reset: bool) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.readable().await.unwrap();
                if !by_reset {
                    let _ = stream.read(&mut [0; 16 * 1024]).await;
                }
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        (format!("rediss://127.0.0.1:{port}"), count)
    }

    #[tokio::test]
    async fn a_handshake_that_breaks_off_is_tried_again() {
        let tls = Tls::new().ca_certificates(Authority::generate().pem());
        let settings = client().server_timeout(Duration::from_secs(2)).tls(tls);
        for by_reset in [false, true] {
            let (url, count) = breaks_off(by_reset).await;
            let error = settings.clone().connect(&url).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
            assert!(count.load(Ordering::SeqCst) > 1, "it was not tried again");
        }
    }

    #[tokio::test]
    async fn a_server_under_another_name_than_its_own_is_refused() {
        let authority = Authority::generate();
        let Some((_server, url)) = server(&authority, "no").await else {
            return;
        };
        let settings = client().tls(Tls::new().ca_certificates(authority.pem()));
        settings.clone().connect(&url).await.unwrap();
        refused(settings.connect(&url.replace("127.0.0.1", "localhost")).await);
    }

    /// Such a certificate is what plain `openssl req -x509` makes.
    #[cfg(feature = "rustls")]
    #[tokio::test]
    async fn a_server_with_the_certificate_of_an_authority_is_refused_and_the_way_out_is_named() {
        let authority = Authority::generate_for(&["127.0.0.1"]);
        if !Server::has_tls() {
            return eprintln!("skipped: the installed server was built without TLS");
        }
        let server = Server::builder().self_signed(&authority).start().await;
        let url = format!("rediss://127.0.0.1:{}", server.tls_port().unwrap());
        let tls = Tls::new().ca_certificates(authority.pem());
        let message = refused(client().tls(tls).connect(&url).await);
        assert!(message.contains("basicConstraints"), "{message}");
    }

    /// Connecting fails before anything is sent, with these words.
    async fn is_invalid(tls: Tls, words: &str) {
        let connected = client().tls(tls).connect("rediss://127.0.0.1:1").await;
        let error = connected.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_used_is_refused_with_the_reason() {
        let (certificate, key) = Authority::generate().certify(&["a client"]);
        let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        for (key, told) in [
            (encrypted, "openssl pkey"),
            (certificate.clone(), "no private key"),
        ] {
            is_invalid(Tls::new().client_certificate(certificate.clone(), key), told).await;
        }
    }

    #[tokio::test]
    async fn a_server_that_asks_for_a_certificate_is_shown_one() {
        let authority = Authority::generate();
        let Some((_server, url)) = server(&authority, "yes").await else {
            return;
        };
        let tls = Tls::new().ca_certificates(authority.pem());
        let (certificate, key) = authority.certify(&["a client"]);
        hand_over(
            &client().tls(tls.clone().client_certificate(certificate, key)),
            &url,
        )
        .await;
        refused(client().tls(tls.clone()).connect(&url).await);
        let (certificate, key) = Authority::generate().certify(&["a stranger"]);
        let stranger = tls.client_certificate(certificate, key);
        refused(client().tls(stranger).connect(&url).await);
    }

    #[tokio::test]
    async fn sentinels_and_the_servers_that_they_name_are_trusted_and_shown_the_same() {
        if !Server::has_tls() {
            return eprintln!("skipped: the installed server was built without TLS");
        }
        let authority = Authority::generate();
        let setup = Setup {
            authority: Some(&authority),
            ..Setup::default()
        };
        let group = Sentinels::with(setup).await;
        let url = group.url();
        let tls = Tls::new().ca_certificates(authority.pem());
        let (certificate, key) = authority.certify(&["a client"]);
        let settings = client().tls(tls.clone().client_certificate(certificate, key));
        hand_over(&settings, &url).await;
        hand_over(&settings, &url.replace("rediss", "valkeys")).await;

        let former = group.primary().await;
        let locks = settings.connect(&url).await.unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        group.replicated().await;
        group.servers[former].kill();
        group.switched(former).await;
        guard.release().await.unwrap();

        refused(client().tls(tls).connect(&url).await);
        refused(client().connect(&url).await);
    }

    /// Clusters name their servers by addresses, and announce their host names beside them.
    #[tokio::test]
    async fn a_cluster_that_names_addresses_may_have_certificates_for_its_host_names() {
        if !Server::has_tls() {
            return eprintln!("skipped: the installed server was built without TLS");
        }
        let authority = Authority::generate();
        let start = async |announced: &str| {
            let builder = Server::builder().tls_as(&authority, "localhost");
            let builder = builder
                .config("tls-auth-clients", "no")
                .config("cluster-enabled", "yes");
            let builder = builder.config("cluster-announce-ip", "127.0.0.1");
            let server = builder.config("tls-cluster", "yes").start().await;
            let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            server.command(&words).await;
            let named = server
                .command(&["CONFIG", "SET", "cluster-announce-hostname", announced])
                .await;
            eventually("the slots are served", LIMIT, async || {
                server
                    .command(&["CLUSTER", "INFO"])
                    .await
                    .text()
                    .contains("cluster_state:ok")
            })
            .await;
            (server, !matches!(named, Resp::Error(_)))
        };
        let (server, can_name) = start("localhost").await;
        if !can_name {
            return eprintln!("skipped: servers before 7.0 announce no host names");
        }
        let settings = client().tls(Tls::new().ca_certificates(authority.pem()));
        let url = format!("rediss-cluster://localhost:{}", server.tls_port().unwrap());
        hand_over(&settings, &url).await;
        let findings = diagnose::server(settings.clone(), &url).await.unwrap();
        assert!(
            findings
                .iter()
                .all(|finding| finding.verdict < Verdict::Unavailable),
            "{findings:?}"
        );

        let (other, _) = start("elsewhere").await;
        let url = format!("rediss-cluster://localhost:{}", other.tls_port().unwrap());
        refused(settings.connect(&url).await);
    }

    #[tokio::test]
    async fn invalid_certificates_are_refused_before_anything_is_sent() {
        let (certificate, key) = Authority::generate().certify(&["a client"]);
        for tls in [
            Tls::new().ca_certificates(""),
            Tls::new().ca_certificates("no PEM"),
            Tls::new().client_certificate("no PEM", key.clone()),
            Tls::new().client_certificate(certificate, "no PEM"),
        ] {
            is_invalid(tls, "certificate").await;
        }
    }
}
