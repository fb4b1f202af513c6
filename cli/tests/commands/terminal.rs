//! The terminal, by `script` from util-linux: what it starts is the leader of a session on a terminal.

use std::process::{Command, Stdio};
use std::time::Duration;

use fairlock_testkit::{Server, TempDir, eventually, name};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::pty::Pty;
use crate::scene::{LIMIT, Running, is_free, lock, program, until_waiting};

/// Starts a shell on a terminal. `None` if this machine's `script` cannot, or has no bash.
async fn on_a_terminal(shell: &str, text: &str) -> Option<Running> {
    let works = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let has_script = works(
        Command::new("script")
            .args(["-qec", "true", "/dev/null"])
            .stdin(Stdio::null()),
    );
    if !has_script || !works(Command::new(shell).args(["-c", "true"])) {
        eprintln!("skipped: no `script` of util-linux, or no {shell}");
        return None;
    }
    let mut command = program("script", &Server::shared().await.url());
    command
        .args(["-qec", text, "/dev/null"])
        .env("SHELL", shell)
        .env("NAME", name());
    Some(Running::start(command.stdin(Stdio::piped())))
}

/// CMD reads a line of the terminal, and the shell that runs the command reads the next one.
async fn command_and_then_the_shell_read(command: &str) {
    let text = format!(r#"{command}; read line; echo "the shell read $line"; exit 6"#);
    let Some(mut running) = on_a_terminal("/bin/sh", &text).await else {
        return;
    };
    running.line_with("ready").await;
    running.tell("one\n").await;
    running.line_with("CMD read one").await;
    running.tell("two\n").await;
    running.line_with("the shell read two").await;
    assert_eq!(running.code().await, Some(6));
}

#[tokio::test]
async fn command_has_the_terminal_and_the_shell_has_it_back() {
    let run = r#""$FAIRLOCK" run "$NAME" sh -c 'echo ready; read line; echo "CMD read $line"'"#;
    command_and_then_the_shell_read(run).await;
}

#[tokio::test]
async fn interrupt_key_is_the_commands() {
    let text = r#"
        trap 'echo "the shell was interrupted"' INT
        "$FAIRLOCK" run "$NAME" sh -c '
            trap "echo interrupted; exit 9" INT
            echo ready
            while :; do sleep 0.05; done'
        echo "ended with $?""#;
    let Some(mut running) = on_a_terminal("/bin/sh", text).await else {
        return;
    };
    running.line_with("ready").await;
    running.tell("\u{3}").await;
    running.line_with("interrupted").await;
    running.line_with("ended with 9").await;
}

/// Without that, a loop of such commands could not be interrupted.
#[tokio::test]
async fn interrupt_key_ends_a_script_with_its_command() {
    let run = r#""$FAIRLOCK" run "$NAME" sh -c "read line; echo ready; exec sleep 600""#;
    let lead = r#""$FAIRLOCK" lead "$NAME" sh -c "read line; echo ready; exec sleep 600""#;
    for command in [run, lead] {
        for shell in ["/bin/sh", "/bin/bash"] {
            let text = format!("while :; do {command}; echo \"went on with $?\"; done");
            let Some(mut running) = on_a_terminal(shell, &text).await else {
                return;
            };
            // Who reads from the terminal has it.
            running.tell("\n").await;
            running.line_with("ready").await;
            running.tell("\u{3}").await;
            let ended = running.ended().await;
            assert_eq!(ended.code, Some(130), "{shell} {command}: {ended:?}");
            assert!(!ended.out.contains("went on"), "{shell} {command}: {ended:?}");
        }
    }
}

#[tokio::test]
async fn interrupt_key_ends_a_script_with_a_command_that_waits() {
    let server = Server::shared().await;
    let name = name();
    let lock = lock(server, &name).await;
    let guard = lock.acquire().await.unwrap();
    for shell in ["/bin/sh", "/bin/bash"] {
        let text = format!(r#"while :; do "$FAIRLOCK" run {name} true; echo "went on with $?"; done"#);
        let Some(mut running) = on_a_terminal(shell, &text).await else {
            return;
        };
        until_waiting(&lock, 1).await;
        running.tell("\u{3}").await;
        let ended = running.ended().await;
        assert_eq!(ended.code, Some(130), "{shell}: {ended:?}");
        assert!(!ended.out.contains("went on"), "{shell}: {ended:?}");
    }
    guard.release().await.unwrap();
}

/// The key is CMD's, which would otherwise begin again and again.
#[tokio::test]
async fn interrupt_key_ends_a_leader_with_its_command() {
    for command in [
        "exec sleep 600",
        "trap 'exit 130' INT; while :; do sleep 0.05; done",
    ] {
        let text = format!(
            r#"
            trap : INT
            "$FAIRLOCK" lead "$NAME" sh -c "read line; echo ready; {command}"
            echo "ended with $?""#
        );
        let Some(mut running) = on_a_terminal("/bin/sh", &text).await else {
            return;
        };
        // Who reads from the terminal has it.
        running.tell("\n").await;
        running.line_with("ready").await;
        running.tell("\u{3}").await;
        running.line_with("ended with 130").await;
    }
}

#[tokio::test]
async fn stop_key_stops_the_whole_job_which_can_be_continued() {
    let text = r#"
        set -m
        "$FAIRLOCK" run "$NAME" bash -c '
            read line; echo ready; read line; echo "CMD read $line"; exit 8'
        echo "stopped with $?"
        jobs
        fg
        echo "ended with $?""#;
    let Some(mut running) = on_a_terminal("/bin/bash", text).await else {
        return;
    };
    // Who reads from the terminal has it. A key just before that comes to nothing: CMD, which was stopped as
    // it asked for the terminal, is continued, and that discards a signal that stops.
    running.tell("\n").await;
    running.line_with("ready").await;
    running.tell("\u{1a}").await;
    // 128 and SIGTSTP.
    running.line_with("stopped with 148").await;
    running.tell("one\n").await;
    running.line_with("CMD read one").await;
    running.line_with("ended with 8").await;
}

/// While CMD has the terminal, the command itself is in the background.
#[tokio::test]
async fn command_is_killed_on_a_terminal_on_which_nothing_in_the_background_may_write() {
    let text = r#"
        set -m
        stty tostop
        "$FAIRLOCK" run --lease 1 --kill-after 0.2 "$NAME" sh -c '
            trap "" TERM
            "$FAIRLOCK" release "$FAIRLOCK_NAME" --fence "$FAIRLOCK_FENCE"
            while :; do sleep 0.05; done'
        echo "ended with $?""#;
    let Some(mut running) = on_a_terminal("/bin/bash", text).await else {
        return;
    };
    running.line_with("ended with 76").await;
}

#[tokio::test]
async fn hold_in_the_background_of_a_terminal_goes_on() {
    let text = r#"
        set -m
        "$FAIRLOCK" hold "$NAME" &
        until "$FAIRLOCK" status "$NAME" | grep -q held; do sleep 0.05; done
        sleep 1
        echo "stopped: $(jobs -s | wc -l)"
        kill %1
        wait %1
        echo "ended with $?""#;
    let Some(mut running) = on_a_terminal("/bin/bash", text).await else {
        return;
    };
    running.line_with("stopped: 0").await;
    running.line_with("ended with 0").await;
}

#[tokio::test]
async fn job_that_is_continued_after_its_lease_does_not_go_on() {
    let text = r#"
        set -m
        "$FAIRLOCK" run --lease 1 "$NAME" bash -c 'echo ready; while sleep 0.1; do echo working; done'
        sleep 2
        echo continuing
        fg >/dev/null
        echo "ended with $?""#;
    let Some(mut running) = on_a_terminal("/bin/bash", text).await else {
        return;
    };
    running.line_with("ready").await;
    running.tell("\u{1a}").await;
    running.line_with("continuing").await;
    // At most what is said by `fg` and of the loss, but no work.
    let mut said = Vec::new();
    while !said
        .last()
        .is_some_and(|line: &String| line.ends_with("ended with 76"))
    {
        said.push(running.line().await);
        assert!(said.len() < 10, "{said:?}");
    }
    assert!(!said.iter().any(|line| line.contains("working")), "{said:?}");
}

/// Where no shell could continue the group, the system stops none of its processes.
#[tokio::test]
async fn stop_key_without_a_shell_to_come_back_to_stops_nothing_for_good() {
    let text = r#"exec "$FAIRLOCK" run "$NAME" sh -c 'echo ready; read line; echo "CMD read $line"'"#;
    let Some(mut running) = on_a_terminal("/bin/sh", text).await else {
        return;
    };
    running.line_with("ready").await;
    running.tell("\u{1a}").await;
    running.tell("one\n").await;
    running.line_with("CMD read one").await;
    assert_eq!(running.code().await, Some(0));
}

/// Ctrl-S stops the terminal before anything is said there. Each line would wait for Ctrl-Q.
#[tokio::test]
async fn stopped_terminal_holds_up_neither_the_command_nor_the_renewals() {
    let server = Server::shared().await;
    let (name, folder) = (name(), TempDir::create());
    let lock = lock(server, &name).await;
    for what in ["run", "hold"] {
        let [began, end] = ["began", "end"].map(|file| folder.path().join(format!("{what}-{file}")));
        let command = format!(
            "touch {}; until [ -e {} ]; do sleep 0.05; done",
            began.display(),
            end.display()
        );
        let text = match what {
            "run" => format!(r#"read line; exec "$FAIRLOCK" run -v --lease 1 {name} -c '{command}'"#),
            _ => format!(r#"read line; exec "$FAIRLOCK" hold -v --lease 1 {name}"#),
        };
        let Some(mut pty) = Pty::start("sh", &["-c", &text], &server.url(), (24, 80)) else {
            return;
        };
        pty.type_in("\u{13}\n");
        eventually("it holds the lock", LIMIT, async || {
            lock.status().await.unwrap().holder.is_some() && (what == "hold" || began.exists())
        })
        .await;
        let holder = lock.status().await.unwrap().holder.unwrap();
        // The lease would be over by then.
        eventually("it has held for long", LIMIT, async || {
            let now = lock.status().await.unwrap().holder.expect("it is held");
            assert_eq!(now.fence, holder.fence);
            now.held_for > Duration::from_secs(3)
        })
        .await;
        if what == "run" {
            // Nothing of what was said is lost, if the terminal goes on in time.
            pty.read();
            pty.type_in("\u{11}");
            pty.until("it says what it has waited to say", |screen| {
                screen.contains("acquired")
            })
            .await;
            std::fs::write(end, "").unwrap();
        } else {
            pty.signal(nix::sys::signal::Signal::SIGTERM);
        }
        assert_eq!(pty.code().await, Some(0), "{what}");
        assert!(is_free(&lock).await);
    }
}

/// As `ssh` and `sudo` do that want a password.
#[tokio::test]
async fn command_that_asks_on_the_terminal_gets_it_whatever_its_stdin_is() {
    let run = r#""$FAIRLOCK" run "$NAME" sh -c 'echo ready; read line </dev/tty; echo "CMD read $line"'"#;
    for text in [
        run.to_owned(),
        format!("{run} </dev/null"),
        format!("true | {run}"),
        format!("echo one | while read word; do {run}; done"),
    ] {
        command_and_then_the_shell_read(&text).await;
    }
}

#[tokio::test]
async fn command_in_the_background_of_a_script_leaves_it_the_terminal() {
    let text = r#"
        "$FAIRLOCK" run "$NAME" sh -c 'echo ready; exec sleep 600' &
        read line; echo "the shell read $line"; kill $!; wait; exit 6"#;
    let Some(mut running) = on_a_terminal("/bin/sh", text).await else {
        return;
    };
    running.line_with("ready").await;
    running.tell("one\n").await;
    running.line_with("the shell read one").await;
    assert_eq!(running.code().await, Some(6));
}

#[tokio::test]
async fn it_is_said_that_the_command_is_stopped() {
    let script = r#"exec "$FAIRLOCK" run "$1" -c 'echo $$; kill -STOP $$; echo "went on"' 2>&1"#;
    let mut shell = program("sh", &Server::shared().await.url());
    let mut running = Running::start(shell.args(["-c", script, "sh", &name()]));
    let pid = running.line().await;
    let said = running.line().await;
    assert!(
        said.contains("stopped by SIGSTOP") && said.contains(&pid),
        "{said}"
    );
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGCONT).unwrap();
    running.expect("went on").await;
    assert_eq!(running.ended().await.code, Some(0));
}
