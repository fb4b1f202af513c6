//! Tests of the URLs of servers.

use super::*;

#[test]
fn passwords_are_never_shown() {
    for url in [
        "redis://user:s3cret@host:6379",
        "redis://:s3cret@host:port",
        "redis://user:s3c@s3cret@host",
        "redis://user:s3c?s3cret@host",
        "user:s3cret@host",
        "http://user:s3cret@host",
        "redis://host?password=s3cret",
        "redis://host?password=x@s3cret",
        "unix://user:s3cret@host/",
        "redis-sentinel://user:s3cret@host?sentinelPassword=s3cret",
        "redis://user:123#s3cret@host",
        "redis://user:s3c#ret@host",
        "redis://user:12?s3cret@host",
        "redis://user:12?s3cret=@host",
        "redis://:s3cret",
        "redis://user:s3cret",
        "redis://user@s3cret/word@host",
        "redis://host/s3cret",
        // Parts of URLs that were split at a comma in the password.
        "redis://:s3c",
        "s3cret@host:6379",
        "user:s3cret@host://",
        "s3cret",
    ] {
        if let Err(invalid) = Address::parse(url) {
            assert!(!invalid.to_string().contains("s3c"), "{invalid}");
        }
    }
}

#[test]
fn urls_without_a_server_are_invalid() {
    for url in [
        "",
        "127.0.0.1:6379",
        "http://host",
        "redis://",
        "redis://:6379",
        "redis://host:port",
        "redis://host/x",
        "redis://host/256",
        "redis://host/1/2",
        "redis://host:99999",
        "redis://host?protocol=3",
        "redis://host?db=1",
        "redis://host?timeout=1",
        "redis://%ff@host",
        "redis-cluster://host/one",
        "redis-sentinel://host",
        "redis-sentinel://host?sentinelServiceName=",
        "redis-sentinel://?sentinelServiceName=main",
        "redis-sentinel://host?sentinelServiceName=main&node=",
        "redis-sentinel://host?sentinelServiceName=main&node=host:port",
        "unix:///",
        "unix:///run/redis.sock?db=x",
        "redis-sentinel://host?sentinelServiceName=main&sentinelUsername=user",
        "redis-sentinel://host?sentinelServiceName=main&sentinelUsername=user&sentinelPassword=",
        "redis-cluster://host?node=user:word@b",
        "redis-cluster://host?node=b/1",
        "redis-cluster://host?node=b%3Fx=3",
        "redis-cluster://host?node=b%231",
        "redis-cluster://host?node=redis://b:1",
    ] {
        assert!(Address::parse(url).is_err(), "{url}");
    }
}

#[test]
fn a_url_that_cannot_be_read_is_named_by_its_scheme() {
    for (url, told) in [
        (
            "rediss-cluster://host/one",
            "server URL \"rediss-cluster://...\": ",
        ),
        ("redis://host?db=1", "there are no parameters (a ? in"),
        ("unix:///a?x=1", "the only parameters are db (a ? in"),
        ("http://host", "server URL \"http://...\": the scheme must be"),
        (
            "host:6379",
            "server URL: must be like redis://user:password@host:6379",
        ),
    ] {
        let invalid = Address::parse(url).err().unwrap().to_string();
        assert!(invalid.contains(told), "{invalid}");
    }
}

#[test]
fn a_hash_is_refused_without_a_word_of_the_url() {
    for url in [
        "redis://user:123#s3cret@host",
        "redis://user:s3c#ret@host",
        "redis://host#s3cret",
        "unix:///run/s3cret#1.sock",
    ] {
        let invalid = Address::parse(url).err().unwrap().to_string();
        assert!(invalid.contains("%23"), "{invalid}");
        assert!(!invalid.contains("s3c") && !invalid.contains("123"), "{invalid}");
    }
    let address = Address::parse("redis://user:123%23s3cret@host").unwrap();
    assert_eq!(address.password.as_deref(), Some("123#s3cret"));
}

#[test]
fn urls_may_omit_parts_with_a_default() {
    for (url, server) in [
        ("redis://host", "host:6379"),
        ("redis://host:1/", "host:1"),
        ("valkey://user:password@host:1/3", "host:1"),
        ("redis://[::1]:1", "::1:1"),
    ] {
        assert_eq!(Address::parse(url).unwrap().to_string(), server);
    }
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
#[test]
fn tls_without_its_feature_is_refused_and_the_feature_named() {
    let invalid = Address::parse("rediss://host").err().unwrap();
    assert!(invalid.to_string().contains("feature `rustls`"), "{invalid}");
}

#[cfg(any(feature = "rustls", feature = "native-tls"))]
#[test]
fn every_part_of_a_url_is_read() {
    let address = Address::parse("valkeys://us%40er:pass%3Aword@host:1/3").unwrap();
    assert!(address.tls);
    assert_eq!(address.to_string(), "host:1");
    assert_eq!(address.username.as_deref(), Some("us@er"));
    assert_eq!(address.password.as_deref(), Some("pass:word"));
    assert_eq!(address.database, Some(3));
}

#[cfg(unix)]
#[test]
fn a_socket_is_named_by_its_path() {
    let address = Address::parse("redis+unix://user:password@localhost/run/my%20redis.sock?db=2").unwrap();
    assert_eq!(address.to_string(), "/run/my redis.sock");
    assert_eq!(address.username.as_deref(), Some("user"));
    assert_eq!(address.database, Some(2));
    assert_eq!(Address::parse("unix:///a.sock").unwrap().to_string(), "/a.sock");
}

#[test]
fn servers_of_a_cluster_are_named_each() {
    let address = Address::parse("valkey-cluster://user:word@a?node=b:1&node=[::1]:2").unwrap();
    assert_eq!(address.username.as_deref(), Some("user"));
    let Target::Cluster(nodes) = address.target else {
        panic!("a cluster")
    };
    let nodes: Vec<_> = nodes.iter().map(Node::to_string).collect();
    assert_eq!(nodes, ["a:6379", "b:1", "::1:2"]);
}

#[test]
fn sentinels_are_named_each_and_have_a_password_of_their_own() {
    let url = "valkey-sentinel://user:word@a/2?node=b:1&node=[::1]:2&sentinelServiceName=main&sentinelPassword=p%40ss";
    let address = Address::parse(url).unwrap();
    assert_eq!(address.password.as_deref(), Some("word"));
    assert_eq!(address.database, Some(2));
    let Target::Sentinels(group) = address.target else {
        panic!("sentinels")
    };
    let hosts: Vec<_> = group.hosts.iter().map(Server::to_string).collect();
    assert_eq!(hosts, ["a:26379", "b:1", "::1:2"]);
    assert_eq!(group.service, "main");
    assert_eq!(group.username, None);
    assert_eq!(group.password.as_deref(), Some("p@ss"));
}

#[test]
fn a_server_of_a_quorum_is_one_server() {
    let url = "redis-sentinel://user:s3cret@a?sentinelServiceName=main&sentinelPassword=s3cret";
    for (url, kind) in [
        (url, "sentinels"),
        (
            "valkey-sentinel://:s3cret@a?sentinelServiceName=main",
            "sentinels",
        ),
        ("redis-cluster://user:s3cret@a?node=b", "a cluster"),
    ] {
        let invalid = Address::parse_independent(url).err().unwrap().to_string();
        let rule = "a quorum is made of independent servers: redis://, rediss:// or unix://";
        assert!(invalid.contains(kind) && invalid.contains(rule), "{invalid}");
        assert!(!invalid.contains("s3cret"), "{invalid}");
    }
    Address::parse_independent("valkey://user:s3cret@a/2").unwrap();
    Address::parse_independent("http://a").err().unwrap();
}

#[test]
fn urls_of_one_server_have_one_identity() {
    let identity = |url| Address::parse_independent(url).unwrap().identity();
    for (url, same) in [
        ("redis://a", "valkey://user:password@A:6379/3"),
        ("redis://[::1]:1", "redis://[0:0:0:0:0:0:0:1]:1/"),
        #[cfg(unix)]
        (
            "unix:///run/A.sock",
            "redis+unix://user:password@host/run/A.sock?db=2",
        ),
        #[cfg(any(feature = "rustls", feature = "native-tls"))]
        ("redis://a:1", "rediss://a:1"),
    ] {
        assert_eq!(identity(url), identity(same));
    }
    for (url, other) in [
        ("redis://a", "redis://b"),
        ("redis://a:1", "redis://a:2"),
        ("redis://[::1]:1", "redis://[::1:1]:1"),
        #[cfg(unix)]
        ("unix:///run/a.sock", "unix:///run/A.sock"),
    ] {
        assert_ne!(identity(url), identity(other));
    }
}
