//! The guards of the connections to servers, in the order of the files.

use super::{Edit, edit};

const CHANNELS: &str = "src/store/redis/subscriber/channels.rs";
const SERVERS: &str = "src/store/redis/cluster/servers.rs";
const CLUSTER: &str = "src/store/redis/cluster.rs";
const COMMANDS: &str = "src/store/redis/commands.rs";
const CONNECTION: &str = "src/store/redis/connection.rs";
const CONNECTOR: &str = "src/store/redis/connector.rs";
const FAILURE: &str = "src/store/redis/failure.rs";
const LINK: &str = "src/store/redis/supervisor.rs";
const BACKLOG: &str = "src/store/pipeline/backlog.rs";
const IN_FLIGHT: &str = "src/store/pipeline/in_flight.rs";
const PIPELINE: &str = "src/store/pipeline.rs";
const RELOAD: &str = "src/store/pipeline/reload.rs";
const ROUNDS: &str = "src/store/redis/replication.rs";
const SENTINEL: &str = "src/store/redis/sentinel.rs";
const SLOTS: &str = "src/store/redis/cluster/slots.rs";
const SUBSCRIBER: &str = "src/store/redis/subscriber.rs";
const WINDOW: &str = "src/store/pipeline/window.rs";
const WATCH: &str = "src/store/redis/cluster/watch.rs";

const CALLS: &[&str] = &["--lib calls"];
const CLUSTER_TESTS: &[&str] = &["--lib cluster::"];
const CONNECTIONS: &[&str] = &["--lib connections"];
const FAILURES: &[&str] = &["--lib failure"];
const MIGRATION: &[&str] = &["--test servers cluster::migration::"];
const PIPELINE_TESTS: &[&str] = &["--lib pipeline::"];
const WINDOW_TESTS: &[&str] = &["--lib window"];
const SUBSCRIPTIONS: &[&str] = &["--lib subscri"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("a client that is dropped leaves no connection", CLUSTER,
        "    fn drop(&mut self) {\n        self.close();\n    }", "    fn drop(&mut self) {}", CONNECTIONS),

    edit("a channel is left where its slot was, as it has to be", SERVERS, "if self.pubsub_mode.ends_with_the_slot() {", "if true {", CLUSTER_TESTS),
    edit("a server that has left the cluster does not close the client", SERVERS,
        "Failure::Closed if !self.is_closed() => {", "Failure::Closed if false => {", &["--test servers cluster::failover::"]),
    edit("slots that there are not are not believed", SLOTS, "(first <= last && !servers.is_empty())", "(!servers.is_empty())", CLUSTER_TESTS),
    edit("those whom the user names are asked before those that may be gone", WATCH,
        "        let mut others = self.connector.seeds().to_vec();\n        others.extend(self.table().addresses().into_iter().rev());\n",
        "        let mut others = self.table().addresses();\n        others.extend_from_slice(self.connector.seeds());\n", CLUSTER_TESTS),

    edit("replicas do not stand in for the disk of the primary", COMMANDS, ".min(durability.replicas)", "", &["--lib commands"]),
    edit("acquires and releases wait for a slot that is on its way", CLUSTER,
        "since.elapsed() < patience", "false", MIGRATION),
    edit("a lock that nobody waits for is taken and given back while its slot moves", CLUSTER,
        "if alone == Alone::Next => {", "if false => {", MIGRATION),
    edit("a call that takes more than the lock is made as a whole again", CLUSTER,
        "                        alone = Alone::Never;\n                        continue;", "                        return Err(cluster.failed(failure));", MIGRATION),
    edit("where a slot came lately, nobody is passed over who has not followed yet", SERVERS,
        "if table.has_moved_lately(slot)", "if false", MIGRATION),
    edit("a server that imports a slot is told to answer all the same", COMMANDS, "if !self.asking {", "if true {", MIGRATION),

    edit("a connection that is given up is closed", CONNECTION, "        self.router.abort();\n", "", CONNECTIONS),

    edit("a failover ends the connections to the former primary", CONNECTOR,
        "Ok(connection) => Ok(connection.until(sentinels.successor_of(primary))),", "Ok(connection) => Ok(connection),", &["--test servers by_hand"]),

    edit("a call for a slot that is being moved was not executed", FAILURE, "\"TRYAGAIN\"", "\"TRYAGAINST\"", FAILURES),
    edit("a wait on a server that became a replica is no refusal", FAILURE, "\"UNBLOCKED\"", "\"UNBLOCK\"", FAILURES),
    edit("a cluster that is down leaves it open what was executed", FAILURE,
        "Some(\"CLUSTERDOWN\") => Failure::Unknown(message(error)),", "Some(\"CLUSTERDOWN\") => Failure::NotExecuted(message(error)),", FAILURES),

    edit("what keeps a hold waits for nobody's answer", PIPELINE, "place.priority == Priority::Keep || (", "(", PIPELINE_TESTS),
    edit("no newcomer goes ahead of those who wait for room", PIPELINE, "(state.backlog.is_empty() && self.in_flight.has_capacity())", "self.in_flight.has_capacity()", &["--lib flood"]),
    edit("who waits for room has somebody notice that there is some", BACKLOG,
        "        pipeline.mark(state);\n", "        drop(state);\n", PIPELINE_TESTS),
    edit("nothing is sent while the scripts are loaded", PIPELINE, "Gate::Open(wire) if !state.reloading && can_go => {", "Gate::Open(wire) if can_go => {", PIPELINE_TESTS),
    edit("a call that met forgotten scripts keeps its place", PIPELINE, "place.get_or_insert_with(|| {", "place.insert({", PIPELINE_TESTS),
    edit("a call that met forgotten scripts is in flight until it has its place", PIPELINE, "            forgotten = Some(sent.flight);\n", "            forgotten = Some(sent.flight).filter(|_| false);\n", &["--lib pipeline::", "--lib calls", "--lib flood"])
        .equal("only another thread comes between the two"),
    edit("one slow answer does not replace a connection that answers others", PIPELINE,
        "WireErrorKind::Timeout if !self.has_heard_since(sent) =>", "WireErrorKind::Timeout =>", PIPELINE_TESTS),
    edit("a connection that is silent is condemned", PIPELINE, "self.replace(generation, Why::Silent)", "drop(generation)", PIPELINE_TESTS),
    edit("a connection whose sign of life is another's is condemned", PIPELINE, "if !W::echoes(&response.value, &nonce) {", "if false {", PIPELINE_TESTS),
    edit("a server that refuses says so at once", PIPELINE, "Gate::Down(refused @ Failure::Refused(_)) =>", "Gate::Down(refused @ Failure::Closed) =>", &["--lib pipeline::", "--test servers faults::refusals::", "--lib connections"]),
    edit("what waits ends as the pipeline is closed", PIPELINE, "let backlog = std::mem::take(&mut state.backlog);", "let backlog = ();", PIPELINE_TESTS),
    edit("calls of a former connection take no place in the window", PIPELINE, "            self.in_flight.start_over();\n", "", PIPELINE_TESTS),

    edit("what ends a hold goes before what asks for one", BACKLOG, "    pub(super) priority: Priority,\n    pub(super) entered: u64,", "    pub(super) entered: u64,\n    pub(super) priority: Priority,", PIPELINE_TESTS),
    edit("who waits behind a flood is not given up while it is answered", BACKLOG,
        "            Gate::Open(_) if self.has_heard_since(since) => None,\n", "", &["--lib pipeline::", "--lib flood"]),
    edit("who waits on a server that does not answer is told so", BACKLOG,
        "Gate::Open(_) if self.has_heard_since(since) => None,", "Gate::Open(_) if !state.reloading => None,", PIPELINE_TESTS),
    edit("who waits for room waits for the scripts too", BACKLOG,
        "        if state.reloading {\n            return;\n        }\n        let wire", "        let wire", &["--lib pipeline::", "--lib flood"]),
    edit("of those who wait no more go than there is room for", BACKLOG, "first.key().0 == Priority::Keep || in_flight.has_capacity()", "true", &["--lib pipeline::", "--lib flood"]),
    edit("what keeps a hold goes out with a connection however many ask", BACKLOG, "first.key().0 == Priority::Keep || ", "", PIPELINE_TESTS),
    edit("a call whose caller is gone leaves the backlog", BACKLOG, "let left = self.pipeline.state().backlog.remove(self.place);", "let left = ();", PIPELINE_TESTS),
    edit("there is one mark at a time", BACKLOG, "            || state.marking\n", "", PIPELINE_TESTS)
        .equal("more PINGs than are needed"),

    edit("a flood of acquires is sent as others are answered", IN_FLIGHT, "self.sent.load(Ordering::SeqCst) - self.answered.load(Ordering::SeqCst) < window.size()", "true", PIPELINE_TESTS),
    edit("a call that nobody waits for any more fails", BACKLOG, "while let Some(expired) = state.backlog.asks.expired(self.clock.now()) {", "while let Some(expired) = None::<Waiting<W>> {", PIPELINE_TESTS),
    edit("asks wait for room too", BACKLOG, "self.asks.is_empty() || !in_flight.has_capacity()", "self.asks.is_empty()", PIPELINE_TESTS),
    edit("asks go by how long an answer takes", BACKLOG, "self.asks.next(now, in_flight.latency())", "self.asks.next(now, in_flight.latency() * 0)", PIPELINE_TESTS),
    edit("who waits for room is remembered", IN_FLIGHT, "            self.is_waited_for.store(true, Ordering::SeqCst);\n", "", PIPELINE_TESTS),
    edit("fewer are in flight at a server that is behind", WINDOW, "(at_work + queued).clamp", "(at_work.max(self.size) + queued).clamp", WINDOW_TESTS),
    edit("a far server has many in flight", WINDOW, "QUEUED.max(self.size / QUEUED_SHARE)", "QUEUED", WINDOW_TESTS),
    edit("the least latency is looked for anew", WINDOW, "None if now.since(self.since) >= LEAST_KEPT => {", "None if false => {", WINDOW_TESTS),
    edit("few are in flight while the least latency is looked for", WINDOW, "                self.size = FEWEST.min(self.most);\n", "", WINDOW_TESTS),
    edit("what was in flight before does not count as few", WINDOW, "Some(probe) if probe.is_empty => self.size", "Some(probe) if true => self.size", WINDOW_TESTS),
    edit("as many may be in flight while nobody waits for room", WINDOW, "if round.was_full {", "if true {", WINDOW_TESTS),
    edit("an answer of before says nothing of what was sent since", IN_FLIGHT, "self.answered.fetch_max(count, Ordering::SeqCst);", "self.answered.store(count, Ordering::SeqCst);", &["--lib pipeline::", "--lib flood"]),

    edit("the scripts are loaded once for all that met their absence", RELOAD, "state.reloading || state.reloads != reloads_when_sent", "state.reloading", &["--lib pipeline::", "--lib flood", "--lib calls"]),
    edit("who met forgotten scripts takes its place before anybody goes", RELOAD,
        "for _ in 0..STRAGGLER_WAITS {", "for _ in 0..0 {", &["--lib pipeline::", "--lib calls", "--lib flood"]),
    edit("a caller that does not poll its call holds up nobody for long", RELOAD,
        "let answered = tokio::time::timeout(STRAGGLER_WAIT, self.pipeline.in_flight.none());", "let answered = tokio::time::timeout(1000 * STRAGGLER_WAIT, self.pipeline.in_flight.none());", &["--lib calls"]),
    edit("who waits while the scripts cannot be loaded is told so", RELOAD,
        "Err(failure) if state.generation == generation => {", "Err(failure) if false => {", PIPELINE_TESTS),

    edit("scripts that a connection of before could not load hold up nobody", RELOAD,
        "Err(failure) if state.generation == generation => {", "Err(failure) => {", PIPELINE_TESTS),

    edit("a connection comes with the scripts loaded", LINK, "                    let _ = load(connection.client(), &self.scripts).await;\n", "", CONNECTIONS),
    edit("that a connection is another one is told before a reply can come on it", LINK,
        "            // This comes before any reply on the new connection, which may lead to another server.\n", "            self.open(&connection);\n", CONNECTIONS),
    edit("a dead connection is found out though nothing is called", LINK, "                ping.await;\n", "                drop(ping);\n", CONNECTIONS),
    edit("a replica is left at its first word once its connection is of age", LINK, "connection.age() < READ_ONLY_PATIENCE", "self.ping_every > READ_ONLY_PATIENCE", CALLS),
    edit("what is said of a connection does not end the next one", LINK, "if condemned.generation == generation && !patient {", "if !patient {", CONNECTIONS),

    edit("a hold that is gone is confirmed by nobody", ROUNDS,
        "            if !matches!(answer.reply, Renewed::Until(_)) {\n                return Ok(answer.confirmed(0));\n            }\n", "", &["--lib replication::"]),
    edit("replicas are asked on the connection that the hold was renewed on", ROUNDS,
        "*generation != wait_request.generation", "*generation == u64::MAX", &["--lib replication::"]),

    edit("more than half of the sentinels answer", SENTINEL,
        "while count <= self.configs.len() / 2 {", "while count < 1 {", &["--test servers highest_config_epoch_wins"]),

    edit("what was being subscribed as the connection broke is subscribed on the next one", SUBSCRIBER,
        "                Err(failure) => {\n                    self.todo.push_front(names);\n", "                Err(failure) => {\n", SUBSCRIPTIONS),
    edit("a refused subscription costs no connection", SUBSCRIBER,
        "Err(Failure::Refused(error)) if names.len() == 1 => self.refuse(&names[0], &error),",
        "Err(Failure::Refused(error)) if names.len() == 1 => {\n                    self.refuse(&names[0], &error);\n                    return Err(Ended::Lost(error));\n                }",
        SUBSCRIPTIONS),
    edit("a refusal is remembered", CHANNELS, "(at.elapsed() < REFUSED_FOR).then(|| failure.clone())", "(at.elapsed() < Duration::ZERO).then(|| failure.clone())", SUBSCRIPTIONS),
    edit("a refusal is not remembered for ever", CHANNELS, "(at.elapsed() < REFUSED_FOR).then(|| failure.clone())", "(at.elapsed() < 1000 * REFUSED_FOR).then(|| failure.clone())", SUBSCRIPTIONS),
    edit("a refused end of a subscription costs no connection", SUBSCRIBER,
        "are ignored.\n                tracing::warn!(server = self.connector.server(), %error, \"the server refuses to end a subscription\");\n                Ok(())",
        "are ignored.\n                Err(Ended::Lost(error))", SUBSCRIPTIONS),
    edit("replies stay in step with commands once a subscription has succeeded", CONNECTION,
        "            let _ = client.subscribe(Vec::<String>::new()).await;\n            let _ = pong.await;\n", "", SUBSCRIPTIONS),
    edit("the echo of the subscriber's PING is compared", CONNECTION,
        "Ok(reply) if echoes(&reply, &nonce) => {\n            let _ =", "Ok(_) if true => {\n            let _ =", SUBSCRIPTIONS),
    edit("the subscriber connection is replaced with the command connection", LINK,
        "                let _ = follower.send(Instruction::Follow);\n", "                let _ = follower;\n", CONNECTIONS),
    edit("the subscriber connection waits for the command connection", SUBSCRIBER,
        "        Arc::clone(pipeline).ping(0).await;\n", "        let _ = pipeline;\n", CONNECTIONS),
    edit("the connection of a subscription that is not seen is given up", SUBSCRIBER,
        "sleep(unseen_left), if self.unseen => {", "sleep(unseen_left), if false => {", SUBSCRIPTIONS),
    edit("a connection whose subscriptions are not seen is kept for longer each time", SUBSCRIBER,
        "LONGEST_UNSEEN.min(2 * self.unseen_for)", "self.unseen_for", SUBSCRIPTIONS),
    edit("a channel that was given up meanwhile is not subscribed", SUBSCRIBER, "            names.retain(|name| self.is_wanted(name));\n", "", SUBSCRIPTIONS),
    edit("a user who may not ping is not reconnected in a rush", SUBSCRIBER, "                    backoff.ended_after(connection.age());\n", "                    backoff = Backoff::default();\n", SUBSCRIPTIONS),
    edit("requests do not pile up while there is no connection", SUBSCRIBER,
        "Some(request) = self.requests.recv() => drop(self.take_in(request)),", "Some(()) = std::future::ready(None) => {}", SUBSCRIPTIONS),
    edit("a channel that is asked for again and again is to be subscribed once", CHANNELS,
        "            *channel = Channel::default();\n", "            self.channels.remove(name);\n", SUBSCRIPTIONS),
    edit("who waits is told of a reconnect once all is subscribed again", SUBSCRIBER,
        "            if let Err(verdict) = self.subscribe(connection).await {\n                return verdict;\n            }\n            if std::mem::take(missed) {\n                if let Some(listener) = self.listener.upgrade() {\n                    listener.reconnected(self.server);\n                }\n            }\n",
        "            if std::mem::take(missed) {\n                if let Some(listener) = self.listener.upgrade() {\n                    listener.reconnected(self.server);\n                }\n            }\n            if let Err(verdict) = self.subscribe(connection).await {\n                return verdict;\n            }\n",
        SUBSCRIPTIONS),
];
