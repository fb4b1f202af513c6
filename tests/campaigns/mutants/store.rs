//! The guards of the connections to servers, in the order of the files.

use super::{Edit, edit};

const ADDRESS: &str = "src/servers/redis/address.rs";
const CHANNELS: &str = "src/servers/redis/channels.rs";
const SERVERS: &str = "src/servers/redis/cluster/servers.rs";
const CLUSTER: &str = "src/servers/redis/cluster.rs";
const CALL: &str = "src/servers/redis/call.rs";
const COMMANDS: &str = "src/servers/redis/commands.rs";
const DISCOVERY: &str = "src/servers/redis/cluster/discovery.rs";
const CONNECTION: &str = "src/servers/redis/connection.rs";
const CONNECTOR: &str = "src/servers/redis/connector.rs";
const DIAL: &str = "src/servers/redis/dial.rs";
const FRED: &str = "src/servers/redis/fred_connection.rs";
const GREETING: &str = "src/servers/redis/greeting.rs";
const RESP: &str = "src/servers/redis/resp.rs";
const FAILURE: &str = "src/servers/redis/failure.rs";
const LABELS: &str = "src/protocol/operations/label.rs";
const LINK: &str = "src/servers/redis/supervisor.rs";
const BACKLOG: &str = "src/servers/redis/pipeline/backlog.rs";
const INFO: &str = "src/servers/redis/server_info.rs";
const IN_FLIGHT: &str = "src/servers/redis/pipeline/in_flight.rs";
const NAMES: &str = "src/servers/redis/names.rs";
const PIPELINE: &str = "src/servers/redis/pipeline.rs";
const ROLE: &str = "src/servers/redis/role.rs";
const ROUNDS: &str = "src/servers/redis/replication.rs";
const SCRIPT_SET: &str = "src/servers/redis/script_set.rs";
const SENTINEL: &str = "src/servers/redis/sentinel.rs";
const SLOTS: &str = "src/servers/redis/cluster/slots.rs";
const TABLE: &str = "src/servers/redis/cluster/table.rs";
const WINDOW: &str = "src/servers/redis/pipeline/window.rs";
const WATCH: &str = "src/servers/redis/cluster/watch.rs";

const ADDRESSES: &[&str] = &["--lib address::"];
const CALLS: &[&str] = &["--lib calls"];
const CLUSTER_TESTS: &[&str] = &["--lib cluster::"];
const CONNECTIONS: &[&str] = &["--lib connections"];
const CONNECTION_TESTS: &[&str] = &["--lib redis::connection::"];
const CHANNEL_TESTS: &[&str] = &["--lib redis::channels::"];
const GREETINGS: &[&str] = &["--lib redis::greeting::"];
const FRAMES: &[&str] = &["--lib redis::resp::"];
const FAILURES: &[&str] = &["--lib failure"];
const INFO_TESTS: &[&str] = &["--lib server_info"];
const MIGRATION: &[&str] = &["--test servers cluster::migration::"];
const UNSERVED: &[&str] = &["--test servers cluster::unserved::"];
const DIALLING: &[&str] = &["--lib dial::", "--lib names::"];
const PIPELINE_TESTS: &[&str] = &["--lib pipeline::"];
const QUORUM: &[&str] = &["--lib redis::tests::quorum"];
const UNFIT: &[&str] = &["--lib redis::role", "--test servers unfit::"];
const WINDOW_TESTS: &[&str] = &["--lib window"];
const SUBSCRIPTIONS: &[&str] = &["--lib subscri"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("nothing of a URL that cannot be read is shown but its scheme", ADDRESS, "format!(\"server URL \\\"{scheme}://...\\\": {why}\")", "format!(\"server URL {text:?}: {why}, {scheme}\")", ADDRESSES),
    edit("the scheme of a URL is shown only if it is one", ADDRESS, ".filter(|scheme| scheme.bytes().all(is_of_a_scheme))", ".filter(|scheme| scheme.bytes().any(is_of_a_scheme))", ADDRESSES),
    edit("a # in a URL is refused", ADDRESS, "if text.contains('#') {", "if false {", ADDRESSES),
    edit("a user of sentinels has a password", ADDRESS, "if username.is_some() && password.is_none() {", "if false {", ADDRESSES),
    edit("a node in a URL has a host and a port alone", ADDRESS, "if node.contains(['@', '/', '?', '#']) {", "if false {", ADDRESSES),

    edit("a dropped client leaves no connection", CLUSTER,
        "fn drop(&mut self) {\n        self.close();\n    }", "fn drop(&mut self) {}", CLUSTER_TESTS).within("drop"),

    edit("a subscription at the former server is ended", SERVERS, "server.unsubscribe(channel);", "let _ = server;", CLUSTER_TESTS).within("leave"),
    edit("a server that has left the cluster does not close the client", SERVERS,
        "Failure::Closed if !self.is_closed() => {", "Failure::Closed if false => {", &["--test servers cluster::failover::"]),
    edit("a slot range that does not exist is ignored", SLOTS, "(first <= last && !servers.is_empty())", "(!servers.is_empty())", CLUSTER_TESTS),
    edit("a server that has no slot yet is kept while its client is opened", TABLE,
        " && since.elapsed() >= 2 * attempt_timeout", "", CLUSTER_TESTS),
    edit("a server that has left the cluster is not kept forever", TABLE,
        "since.elapsed() >= 2 * attempt_timeout", "false && since.elapsed() >= 2 * attempt_timeout", CLUSTER_TESTS),
    edit("the servers that the user names are asked before servers that may be gone", WATCH,
        "let mut others = self.connector.seeds().to_vec();\n        for known in self.table().known() {",
        "let mut others = self.table().known();\n        for known in self.connector.seeds().to_vec() {", CLUSTER_TESTS).within("others"),
    edit("an address that the cluster no longer names is not asked", TABLE, "self.view = BTreeSet::from([asked]);", "self.view.insert(asked);", CLUSTER_TESTS),
    edit("a silent address does not hold up the others", DISCOVERY, "from_millis(50)", "from_secs(5)", CLUSTER_TESTS),
    edit("a server that refused is asked again while others are silent", WATCH,
        "sleep(pause).await;",
        "sleep(1000 * pause).await;", CLUSTER_TESTS).within("ask"),

    edit("the owner of a slot that is refused is looked for at once", CLUSTER,
        "                        cluster.refused(slot);\n", "", UNSERVED),
    edit("a caller waits for a slot that is unserved", SERVERS,
        "let learnt = timeout(self.options.attempt_timeout, learnt).await;", "let learnt = timeout(self.options.attempt_timeout * 0, learnt).await;", CLUSTER_TESTS),
    edit("waiters are not passed over when their slot is served again", SERVERS,
        "self.table().unsettle(slot);", "let _ = slot;", UNSERVED).within("refused"),
    edit("the owners are asked for as long as a caller waits", WATCH,
        "let is_waited_for = cluster.held_back.count() > 0;", "let is_waited_for = false;", CLUSTER_TESTS),

    edit("acquires and releases wait for a slot that moves", CLUSTER,
        "since.elapsed() < patience", "false", MIGRATION),
    edit("an uncontended lock is taken and released while its slot moves", CLUSTER,
        "if may_go_alone => {", "if false => {", MIGRATION),
    edit("a call that needs more than the lock alone is sent again with all keys", CLUSTER,
        "declared = Declared::All;\n                        continue;", "return Err(cluster.failed(failure));", MIGRATION).within("route"),
    edit("a client whose subscription still has to follow a recently moved slot is not skipped", SERVERS,
        "if table.has_moved_recently(slot)", "if false", MIGRATION),
    edit("a call to a server that imports the slot is preceded by ASKING", COMMANDS, "RedisCommand { asking, ..self }", "RedisCommand { asking: false & asking, ..self }", MIGRATION),

    edit("a server of a quorum gets no scripts while it may have forgotten holds", COMMANDS,
        "if let Some(quorum) = scripts.quorum {", "if let (Some(quorum), true) = (scripts.quorum, false) {", QUORUM),
    edit("a server may have forgotten holds for the longest lease", INFO,
        "quorum.longest_lease + quorum.longest_lease / DRIFT + UPTIME_ERROR", "UPTIME_ERROR", INFO_TESTS),
    edit("a server may have forgotten holds for longer by the drift of the clocks", INFO, " + quorum.longest_lease / DRIFT", "", INFO_TESTS),
    edit("a server is younger than its uptime says", INFO, " + UPTIME_ERROR;", ";", &["--lib server_info", "--lib redis::tests::quorum"]),
    edit("a quorum takes no server whose scripts may outlive a restart", INFO, "    check_version(info)?;\n", "", INFO_TESTS),
    edit("a quorum takes no server but Redis and Valkey", INFO, "!KNOWN_VERSIONS.contains(name)", "name.is_empty()", INFO_TESTS),
    edit("a durable server gets the scripts of a quorum at once", INFO, "if quorum.durable {", "if false {", INFO_TESTS),
    edit("clients with another longest lease share no script", SCRIPT_SET, "millis(server.longest_lease)", "0", &["--lib script_set"]),
    edit("a call names its script by the hash of its own connection", SCRIPT_SET, "&self.shas[position]", "String::leak(fred::util::sha1_hash(self.scripts[position].text()))", &["--lib script_set"]),


    edit("a user in a URL has a password", CONNECTOR, "if self.config.username.is_some() && self.config.password.is_none() {", "if false {", &["--test servers connecting::"]),
    edit("a failover ends the connections to the former primary", CONNECTOR,
        "Ok(connection) => Ok(connection.until(successor)),", "Ok(connection) => { drop(successor); Ok(connection) }", &["--test servers by_hand"]),
    edit("a primary that hangs is not waited for once it has a successor", CONNECTOR,
        "server = successor.appears() => {", "server = successor.appears(), if false => {", &["--test servers failover::"])
        .equal("the attempt ends by itself, some seconds later"),
    edit("an attempt to connect has the time of several calls", DIAL, "5 * attempt_timeout / 2", "attempt_timeout", DIALLING).within("dial"),
    edit("an attempt by fred has the time of several calls", DIAL, "5 * attempt_timeout / 2", "attempt_timeout", DIALLING).within("dial_by_fred"),
    edit("the calls by which fred makes a connection have the time of the attempt", DIAL, "internal_command_timeout: within,", "internal_command_timeout: attempt_timeout,", DIALLING),

    edit("an address that is silent does not keep the next one from being tried", DIAL, "sleep(pause), if may_be_more => {}", "sleep(pause), if false => {}", DIALLING),
    edit("all addresses of a name are tried within one attempt", DIAL,
        "STAGGER.min(within / (1 + u32::try_from(addresses.len()).unwrap_or(u32::MAX)))", "STAGGER.min(within)", DIALLING),
    edit("a refusal by one address of a name is not taken to the next", DIAL, "Ok(_) | Err(Failure::Refused(_)) => {", "Ok(_) => {", DIALLING),
    edit("the certificate at an address is for the name", DIAL, "        there.tls_server_name = Some(name.clone());\n", "", DIALLING),
    edit("addresses that were silent are tried last", NAMES, "        addresses.sort_by_key(|address| silent.contains_key(address));\n", "", DIALLING),
    edit("an address is not taken for silent forever", NAMES, "        silent.retain(|_, since| since.elapsed() < SILENT_FOR);\n", "", DIALLING),
    edit("calls that need the same name share one look-up", NAMES, "lookups.retain(|_, lookup| is_under_way(lookup));", "lookups.clear();", DIALLING).within("look_up"),
    edit("a process that can have no further thread is told so", NAMES, "answer.send_replace(Some(Err(ServerError::new(error))));", "drop(error);", DIALLING).within("look_up"),

    edit("a call for keys of a moving slot counts as not executed", FAILURE, "\"TRYAGAIN\"", "\"TRYAGAINST\"", FAILURES),
    edit("a WAIT on a server that became a replica does not count as refused", FAILURE, "\"UNBLOCKED\"", "\"UNBLOCK\"", FAILURES),
    edit("a connection that is lost in the TLS handshake is no refusal", FAILURE, "Some(_) if is_broken_off(error.details()) => {", "Some(_) if false => {", FAILURES),
    edit("a call that keeps a hold waits for no answer to another", PIPELINE, "key.priority == Priority::Keep || (", "(", PIPELINE_TESTS),
    edit("a newcomer does not overtake the calls in the backlog", PIPELINE, "(state.backlog.is_empty() && state.in_flight.has_capacity())", "state.in_flight.has_capacity()", PIPELINE_TESTS),
    edit("a reload stops all sending", PIPELINE, "Wiring::Open(wire) if !state.is_loading && can_go => {", "Wiring::Open(wire) if can_go => {", PIPELINE_TESTS),
    edit("a call that met a missing script keeps its place", PIPELINE, "state.backlog.insert(key, again);", "state.entered += 1;\n        state.backlog.insert(BacklogKey { entered: state.entered, ..key }, again);", PIPELINE_TESTS).within("answered"),
    edit("a call that met a missing script is sent again a limited number of times", PIPELINE, "call.take_if(|call| call.sendings < SENDINGS)", "call.take()", PIPELINE_TESTS),
    edit("a call that met a missing script is forgotten with its caller", PIPELINE, "        drop(call.caller.send(Outcome::Again(caller)));\n", "        std::mem::forget(call.caller.send(Outcome::Again(caller)));\n", PIPELINE_TESTS),
    edit("the reply to a late call shows that the server answers", PIPELINE, "self.answered(sent, at, forgotten);", "if call.is_some() || forgotten.is_some() {\n                self.answered(sent, at, forgotten);\n            }", PIPELINE_TESTS),
    edit("one slow answer does not replace a connection that answers others", PIPELINE,
        "Unanswered::Late if !state.in_flight.has_heard_since(sent.at) => {", "Unanswered::Late => {", PIPELINE_TESTS),
    edit("a silent connection is replaced", PIPELINE, "self.replace(sent.generation, Why::Silent);", "", PIPELINE_TESTS),
    edit("a connection with a wrong answer to its PING is replaced", CALL, "if value.as_str().as_deref() != Some(&nonce) {", "if false {", CONNECTIONS),
    edit("a refusal by the server is reported at once", PIPELINE, "Wiring::Down(refused @ Failure::Refused(_)) =>", "Wiring::Down(refused @ Failure::Closed) =>", &["--lib pipeline::", "--test servers faults::refusals::", "--lib connections"]),
    edit("a refusal by the server ends the calls that wait", PIPELINE,
        "            state.fail_waiting(&failure);\n        }\n", "        }\n", &["--lib pipeline::"]).within("down"),
    edit("a waiting call ends when the pipeline is closed", PIPELINE, "        state.fail_waiting(&Failure::Closed);\n", "", PIPELINE_TESTS),
    edit("calls of a former connection take no place in the window", PIPELINE, "            state.in_flight.start_over();\n", "", PIPELINE_TESTS),

    edit("a status waits for the window", "src/protocol/operations/inspect.rs", "Priority::Ask", "Priority::Keep",
        &["--lib script::", "--test servers faults::flood::"]),
    edit("a renewal that a caller asks for waits for the window", "src/protocol/operations/renew.rs", "true => Priority::End,", "true => Priority::Keep,",
        &["--lib script::", "--test servers faults::flood::"]).within("priority"),
    edit("a request for a label waits for the window", LABELS, "Priority::Ask", "Priority::Keep", &["--lib script::"]),
    edit("a search for locks waits for the window", COMMANDS, "Priority::Ask", "Priority::Keep", &["--lib commands::"]).within("scan"),
    edit("a health check waits for the window", COMMANDS, "Priority::Ask", "Priority::Keep", &["--lib commands::"]).within("time"),
    edit("a call that ends a hold goes before a call that asks for one", BACKLOG,
        "if let Some(first) = self.urgent.first_entry() {",
        "if let Some(first) = self.urgent.first_entry().filter(|first| first.key().0 == Priority::Keep || self.asks.is_empty()) {",
        PIPELINE_TESTS),
    edit("a call behind a flood does not fail while the flood is answered", PIPELINE,
        "            Wiring::Open(_) if self.in_flight.has_heard_since(since) => None,\n", "", &["--lib pipeline::", "--lib flood"]),
    edit("a call that waits on a server that does not answer fails", PIPELINE,
        "Wiring::Open(_) if self.in_flight.has_heard_since(since) => None,", "Wiring::Open(_) if !self.is_loading => None,", PIPELINE_TESTS),
    edit("a call that waits for the window waits for a reload too", PIPELINE,
        "if state.is_loading {\n            return;\n        }\n        let wire", "let wire", &["--lib pipeline::", "--lib flood"]).within("resume"),
    edit("no more waiting calls are sent than the window allows", BACKLOG, "first.key().0 == Priority::Keep || in_flight.has_capacity()", "true", &["--lib pipeline::", "--lib flood"]),
    edit("a call that keeps a hold is sent on a new connection whatever the window allows", BACKLOG, "first.key().0 == Priority::Keep || ", "", PIPELINE_TESTS),
    edit("a call whose caller is gone leaves the backlog", PIPELINE, "let left = self.pipeline.state().backlog.remove(self.key);", "let left = ();", PIPELINE_TESTS),

    edit("a flood of acquires is sent only as others are answered", IN_FLIGHT, "self.sent - self.answered < self.window.size()", "true", PIPELINE_TESTS),
    edit("a waiting call fails when its caller's bound is over", PIPELINE, "while let Some(expired) = state.backlog.expired(now) {", "while let Some(expired) = None::<Call<W>> {", PIPELINE_TESTS),
    edit("acquires wait for the window too", BACKLOG, "self.asks.is_empty() || !in_flight.has_capacity()", "self.asks.is_empty()", PIPELINE_TESTS),
    edit("an acquire that would be answered too late is skipped", BACKLOG, "self.asks.next(now, in_flight.latency())", "self.asks.next(now, in_flight.latency() * 0)", PIPELINE_TESTS),
    edit("a window remembers that a call waits for it", IN_FLIGHT, "            self.is_waited_for = true;\n", "", PIPELINE_TESTS),
    edit("a window shrinks at a server that falls behind", WINDOW, "(at_work + queued).clamp", "(at_work.max(self.size) + queued).clamp", WINDOW_TESTS),
    edit("a window is large for a distant server", WINDOW, "QUEUED.max(self.size / QUEUED_SHARE)", "QUEUED", WINDOW_TESTS),
    edit("the minimum latency is measured again from time to time", WINDOW, "None if now.since(self.since) >= LEAST_KEPT => {", "None if false => {", WINDOW_TESTS),
    edit("few calls are in flight while the minimum latency is measured", WINDOW, "                self.size = FEWEST.min(self.most);\n", "", WINDOW_TESTS),
    edit("calls from before a measurement of the minimum latency do not count as few", WINDOW, "Some(probe) if probe.is_empty => self.size", "Some(probe) if true => self.size", WINDOW_TESTS),
    edit("a window keeps its size while no call waits for it", WINDOW, "if round.was_full {", "if true {", WINDOW_TESTS),
    edit("one load serves all calls that met a missing script", PIPELINE, "if is_present && !state.is_loading => Some", "if is_present => Some", PIPELINE_TESTS),
    edit("a waiting call fails if the scripts cannot be loaded", PIPELINE,
        "Err(failure) => state.fail_waiting(&failure),", "Err(failure) => drop(failure),", PIPELINE_TESTS),
    edit("a load on a former connection says nothing of the present one", PIPELINE,
        "if state.generation == generation {", "if true {", PIPELINE_TESTS),
    edit("a new connection does not wait for a load on a former one", PIPELINE, "            state.is_loading = false;\n            state.in_flight", "            state.in_flight", PIPELINE_TESTS),

    edit("a new connection has the scripts loaded", LINK, "match load(connection.line(), &self.scripts).await {", "match std::future::ready(Ok(drop(load))).await {", CONNECTIONS),
    edit("a server of a quorum without scripts is logged", LINK, "if self.scripts.quorum.is_some() {", "if false {", QUORUM),
    edit("the listener hears of a new connection before any reply on it", LINK,
        "// This comes before any reply on the new connection, which may lead to another server.", "self.open(&connection, false);", CONNECTIONS).within("run"),
    edit("a dead connection is noticed even without calls", LINK, "ping.await;", "drop(ping);", CONNECTIONS).within("watch"),
    edit("an older connection to a replica is replaced at the first READONLY", LINK, "connection.age() < READ_ONLY_PATIENCE", "self.ping_every > READ_ONLY_PATIENCE", CALLS),
    edit("a request to replace a connection does not end the next one", LINK, "if condemned.generation == generation && !patient {", "if !patient {", CONNECTIONS),
    edit("a node of a cluster is no single server", ROLE, "Err(Failure::Refused(why(NODE)))", "Ok(())", UNFIT),
    edit("a sentinel is no server of locks", ROLE, "Err(Failure::Refused(why(SENTINEL)))", "Ok(())", UNFIT),
    edit("a database that is not there is named with what is allowed", FAILURE, "database.filter(|_| is_missing)?", "database.filter(|_| false)?", &["--test servers databases::"]),
    edit("a server that sentinels name must say that it is a primary", ROLE, "Expected::Primary if role.as_deref() == Some(\"master\") => return Ok(()),", "Expected::Primary => return Ok(()),", &["--lib redis::role"]),
    edit("a replica grants nothing", ROLE, "Err(Failure::NotExecuted(why(REPLICA)))", "Ok(())", UNFIT),
    edit("a replica is waited for", ROLE, "Err(Failure::NotExecuted(why(REPLICA)))", "Err(Failure::Refused(why(REPLICA)))", UNFIT),
    edit("the addresses of a name are checked one by one", DIAL, "expected.judge(&said)?;", "let _ = (expected, said);", DIALLING).within("open"),
    edit("the word of a replica counts for more than the silence of others", DIAL, "if !matches!(last, Failure::NotExecuted(_)) {", "if true {", DIALLING),
    edit("a server of a quorum is known before it gets calls", CONNECTOR, "if let Some(servers) = &self.distinct {", "if let Some(servers) = self.distinct.as_ref().filter(|_| false) {", UNFIT),
    edit("connecting to a quorum fails if two URLs lead to one server", "src/api/manager/quorum.rs", "return Err(Error::Refused(doubled));", "let _ = doubled;", UNFIT).within("quorum_on"),
    edit("a server that has got another id is known by that", ROLE, "known.ids.insert(address.to_owned(), id.to_owned());", "known.ids.entry(address.to_owned()).or_insert_with(|| id.to_owned());", UNFIT),
    edit("a certificate may be for the host name that a server of a cluster announces", CONNECTOR, "(Err(Failure::Refused(_)), Some(config)) => self.dial(config, messages).await,", "(Err(Failure::Refused(_)), Some(_)) if false => dialled,", &["--test servers by_tls"]),
    edit("a server that was not asked is not silent", IN_FLIGHT, "self.asked.filter(|_| !self.has_heard_since(since))", "Some(self.asked.unwrap_or(LocalTime::ZERO)).filter(|_| !self.has_heard_since(since))", PIPELINE_TESTS),
    edit("a server that was asked just now is not silent", IN_FLIGHT, "now.since(asked) >= (now.since(since) / 2).max(", "now.since(asked) >= Duration::ZERO.max(", PIPELINE_TESTS),
    edit("a server that is as slow as ever is not silent", IN_FLIGHT, ".max(2 * self.window.smoothed())", "", PIPELINE_TESTS),
    edit("what a server has answered is no longer asked", IN_FLIGHT, "(self.heard, self.asked) = (now, None);", "self.heard = now;", PIPELINE_TESTS),

    edit("a hold that is gone gets no confirmation", ROUNDS,
        "            if !matches!(answer.reply, Renewed::Until(_)) {\n                return Ok(answer.confirmed(0));\n            }\n", "", &["--lib replication::"]),
    edit("a hold is confirmed on the connection that renewed it", ROUNDS,
        "*generation != wait_request.generation", "*generation == u64::MAX", &["--lib replication::"]),

    edit("a client waits for more than half of the sentinels", SENTINEL,
        "while count <= half {", "while count < 1 {", &["--test servers highest_config_epoch_wins"]),
    edit("one sentinel that refuses ends nothing once a primary was found", SENTINEL,
        "if refusals <= half && self.found.load(Ordering::Relaxed) => {", "if false => {", &["--lib sentinel::"]),
    edit("a client that never found a primary is told of a refusal at once", SENTINEL,
        " && self.found.load(Ordering::Relaxed)", "", &["--lib sentinel::"]),

    edit("a process that stood still reads the reply before it looks at the time", CONNECTION,
        "let done = self.read(context)", "self.check_time(context);\n        let done = self.read(context)", CONNECTION_TESTS),
    edit("a call without a reply is told so in time", CONNECTION, "self.alarm = Some(Box::pin(sleep(left)));", "self.alarm = Some(Box::pin(sleep(1000 * left)));", CONNECTION_TESTS),
    edit("the reply to a late call is not taken for that to another", CONNECTION, "            state.late += 1;\n", "            state.in_flight.remove(late);\n", CONNECTION_TESTS),
    edit("a call behind the reply to a late one may be late too", CONNECTION, "        self.late = self.late.saturating_sub(1);\n", "", CONNECTION_TESTS),
    edit("what is late is still awaited", CONNECTION, "                call.awaits = awaits;\n", "                drop((call, awaits));\n", CONNECTION_TESTS),
    edit("a reply to no call ends the connection", CONNECTION, "(None, _) | (Some(Awaits::Subscription(..)), Ok(_)) => {", "(None, _) => return Ok(()),\n            (Some(Awaits::Subscription(..)), Ok(_)) => {", CONNECTION_TESTS),
    edit("a reply confirms no subscription", CONNECTION, "(None, _) | (Some(Awaits::Subscription(..)), Ok(_)) => {", "(None, _) => {", CONNECTION_TESTS),
    edit("a subscription is confirmed by a message for its own channel", CONNECTION, "if **asked == *channel => *number,", "if !asked.is_empty() => *number,", CONNECTION_TESTS),
    edit("a refused subscription costs no connection", CONNECTION, "(None, _) | (Some(Awaits::Subscription(..)), Ok(_)) => {", "(None, _) | (Some(Awaits::Subscription(..)), _) => {", SUBSCRIPTIONS),
    edit("a refused end of a subscription costs no connection", CONNECTION, "messages.not_unsubscribed(said);\n                return Ok(());", "return Err(broken(said.clone()));", SUBSCRIPTIONS),
    edit("a refused end of a subscription has one more reply", CONNECTION, "                messages.not_unsubscribed(said);\n                return Ok(());", "                messages.not_unsubscribed(said);\n                locked(&self.state).answered();\n                return Ok(());", CONNECTION_TESTS),
    edit("a reply follows the end of a subscription", CONNECTION, "            words(out, 1, [&b\"HELLO\"[..]].into_iter());\n", "", CONNECTION_TESTS),
    edit("calls in flight learn at once that their connection is over", CONNECTION, "told(Err(Unanswered::Lost(why.clone())), Clock::Boot.now());", "std::mem::forget(told);", CONNECTION_TESTS),
    edit("calls in flight learn why their connection is over", CONNECTION, "            service.shared.end(&why);\n", "", CONNECTION_TESTS),
    edit("calls end with the runtime of their connection", CONNECTION, "    fn drop(&mut self) {\n        self.shared.end(&over());\n    }", "    fn drop(&mut self) {}", CONNECTION_TESTS),
    edit("a connection that is over takes no call", CONNECTION, "if state.is_over {", "if false {", CONNECTION_TESTS),
    edit("a connection that is given up is closed", CONNECTION, "        self.task.abort();\n", "", CONNECTION_TESTS),
    edit("a connection that is given up has no calls in flight", CONNECTION, "        self.line.0.end(&over());\n", "", CONNECTION_TESTS),
    edit("what is known of a lost connection is not forgotten", CONNECTION, "if let Some(why) = &self.over {", "if let Some(why) = self.over.as_ref().filter(|_| false) {", CONNECTION_TESTS),
    edit("the end of a connection refuses no call", CONNECTION, "            Unanswered::Lost(Failure::Refused(why)) => Failure::Unknown(why),\n", "", CONNECTION_TESTS),
    edit("what is sent while a write is stuck waits for no reply", CONNECTION,
        "            self.is_flushed = false;\n", "            self.is_flushed = false;\n            if self.written == self.writing.len() {\n                break;\n            }\n", CONNECTION_TESTS),
    edit("what is written is flushed", CONNECTION, "if !self.is_flushed {", "if false {", CONNECTION_TESTS),
    edit("a connection by fred that is given up is closed", FRED, "        self.router.abort();\n", "", &["--lib by_fred"]),

    edit("what is no frame yet is not taken for one", RESP, "if !self.is_known || self.at > bytes.len() {", "if self.at > bytes.len() {", FRAMES),
    edit("a frame ends before the next one begins", RESP, "while !self.is_known && self.at", "while self.at", FRAMES),
    edit("a frame is not nested so deeply that it is a danger", RESP, "if self.open.len() == MAX_DEPTH {", "if false {", FRAMES),
    edit("a text is not so long that it is a danger", RESP, "if end > MAX_LENGTH {", "if false {", FRAMES).within("ends"),
    edit("an array is not so long that it is a danger", RESP, "end.saturating_add(parts) > MAX_LENGTH || self.parts > MAX_PARTS", "self.parts > MAX_PARTS", FRAMES)
        .equal("the number of parts is bounded too"),
    edit("a frame has not so many parts that it is a danger", RESP, " || self.parts > MAX_PARTS", "", FRAMES),
    edit("a line is not so long that it is a danger", RESP, "bytes.len() - self.at > MAX_LENGTH", "false", FRAMES),
    edit("attributes are no part of an array", RESP, "ended.is_some_and(|ended| ended.is_attributes)", "false", FRAMES),
    edit("memory for a long frame is not kept", RESP, "            self.buffer.shrink_to(READ_AT_ONCE);\n", "", FRAMES),

    edit("a server must speak RESP3", GREETING, "if named_in(&said, \"proto\").as_deref() != Some(\"3\") {", "if false {", GREETINGS),
    edit("a server that does not speak RESP3 is told from others", GREETING, "if !is_unknown {", "if true {", GREETINGS),
    edit("an older server is not told of a library", GREETING, "version >= KNOWS_LIBRARIES", "version > (0, 0)", GREETINGS),
    edit("a database is selected in the round trip of the greeting", GREETING,
        "line.call(&[\"SELECT\", &number])", "async move { line.call(&[\"SELECT\", &number]).await }", GREETINGS),

    edit("a channel is subscribed once for all who ask", CHANNELS, "if is_new {", "if true {", CHANNEL_TESTS),
    edit("a channel that is confirmed is not waited for", CHANNELS, "if channel.is_confirmed {", "if false {", CHANNEL_TESTS).within("subscribe"),
    edit("a caller that waits no longer for a confirmation is forgotten", CHANNELS, "        channel.waiters.retain(|waiter| !waiter.is_closed());\n", "", CHANNEL_TESTS),
    edit("a refusal is remembered", CHANNELS, "at.elapsed() < REFUSED_FOR", "at.elapsed() < REFUSED_FOR * 0", SUBSCRIPTIONS).within("subscribe"),
    edit("a refusal is not remembered forever", CHANNELS, "at.elapsed() < REFUSED_FOR", "at.elapsed() < 1000 * REFUSED_FOR", SUBSCRIPTIONS).within("subscribe"),
    edit("a channel that is given up before it is confirmed is not listened to", CHANNELS,
        "        if let Some(line) = &state.line {", "        if let Some(line) = state.line.as_ref().filter(|_| channel.is_confirmed) {", CHANNEL_TESTS).within("unsubscribe"),
    edit("a channel that is not wanted any more is not waited for", CHANNELS, "            state.missing = state.missing.map(|missing| missing - 1);\n", "", CHANNEL_TESTS),
    edit("the listener hears of a new connection once all is subscribed on it", CHANNELS, "take_if(|missing| *missing == 0)", "take_if(|_| true)", CHANNEL_TESTS),
    edit("the listener hears of no new connection while there is none", CHANNELS, "state.line.is_some() && ", "", CHANNEL_TESTS),
    edit("the first connection is no new one", CHANNELS, "(!is_first).then_some(names.len())", "Some(names.len())", CHANNEL_TESTS),
    edit("a subscription that was under way when the connection broke is made on the next one", CHANNELS,
        "        state.line = None;\n", "        state.line = None;\n        state.channels.retain(|_, channel| channel.is_confirmed);\n", SUBSCRIPTIONS).within("lost"),
    edit("a channel of a lost connection is not confirmed", CHANNELS, "(channel.is_confirmed, channel.asked) = (false, None);", "channel.asked = None;", CHANNEL_TESTS),
    edit("an answer to an earlier subscription is none to the last", CHANNELS, "(channel.asked == Some(number)).then_some(channel)", "channel.asked.is_some_and(|asked| asked >= number).then_some(channel)", CHANNEL_TESTS),
    edit("a busy server is asked again for a channel of an earlier connection", CHANNELS, "            return self.ask_again(name);\n", "            let _ = Self::ask_again;\n", CHANNEL_TESTS),
    edit("a channel whose slot is unserved is not asked for again", CHANNELS, " && !is_unserved", "", CHANNEL_TESTS),
    edit("a channel whose slot has moved is not asked for again", CHANNELS, " && !is_redirected", "", CHANNEL_TESTS),
    edit("a channel that is refused is not asked for again", CHANNELS, " && !matches!(failure, Failure::Refused(_))", "", CHANNEL_TESTS),
    edit("a slot that the server of a channel does not serve is told", CHANNELS, "if is_unserved {", "if false {", CHANNEL_TESTS),
    edit("the end of a subscription by its server is told", CHANNELS, "listener.left(self.server, name);", "let _ = listener;", CHANNEL_TESTS).within("unsubscribed"),
    edit("the end of a subscription by its client is not told", CHANNELS, ".is_some_and(|channel| channel.is_confirmed)", ".is_some()", CHANNEL_TESTS).within("unsubscribed"),
    edit("a subscription that its server has ended is made again", SERVERS, "        self.table().left(server, channel);\n", "", CLUSTER_TESTS),
    edit("those that wait for a confirmation are told that the client is closed", CHANNELS, "let _ = waiter.send(Err(Failure::Closed));", "drop(waiter);", CONNECTIONS),
    edit("a closed client subscribes to no channel", CHANNELS, "if state.is_closed {", "if false {", CONNECTIONS),
    edit("a new connection is subscribed before any call on it", LINK,
        "            channels.open(connection.line(), is_first);\n        }\n        let generation = self.pipeline.open(Wire {\n            line: connection.line().clone(),\n            scripts: Arc::clone(&self.scripts),\n        });\n        if let Some(channels) = &self.channels {\n",
        "            let _ = channels;\n        }\n        let generation = self.pipeline.open(Wire {\n            line: connection.line().clone(),\n            scripts: Arc::clone(&self.scripts),\n        });\n        if let Some(channels) = &self.channels {\n            channels.open(connection.line(), is_first);\n",
        &["--lib a_new_connection_is_subscribed"]),
];
