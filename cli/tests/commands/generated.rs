//! What is generated from the arguments: completions and manual pages.

use std::process::{Command, Stdio};

use crate::scene::{FAIRLOCK, end_of, fairlock};

const NOBODY: &str = "redis://nobody.invalid";
const COMMANDS: [&str; 11] = [
    "run",
    "lead",
    "hold",
    "status",
    "list",
    "watch",
    "release",
    "check",
    "completions",
    "man",
    "top",
];

fn has(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: no {program}");
    }
    found
}

async fn output(args: &[&str]) -> String {
    let ended = end_of(&mut fairlock(NOBODY, args)).await;
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{args:?}");
    ended.out
}

#[tokio::test]
async fn completions_name_every_command_in_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = output(&["completions", shell]).await;
        for command in COMMANDS {
            assert!(text.contains(command), "{shell}: {command}");
        }
        assert!(text.contains("max-hold"), "{shell}");
    }
    let ended = end_of(&mut fairlock(NOBODY, &["completions", "tcsh"])).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.err.contains("zsh"), "{ended:?}");
}

/// A script that writes one of them to a full disk must not take it for whole.
#[tokio::test]
async fn text_that_cannot_be_written_is_no_success() {
    let asked = [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["help"],
        &["run", "--help"],
        &["help", "run"],
        &["completions", "bash"],
        &["man"],
        &["man", "run"],
    ];
    for args in asked {
        let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
            eprintln!("skipped: no /dev/full");
            return;
        };
        let child = fairlock(NOBODY, args).stdout(full).spawn().unwrap();
        let output = child.wait_with_output().await.unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{args:?}: {words}");
        assert!(words.starts_with("fairlock: No space left"), "{args:?}: {words}");
    }
}

/// What bash offers for the last of these words.
fn offers_of_bash(words: &[&str]) -> Vec<String> {
    // The function that `complete` names is called as the Tab key does.
    let script = r#"
        set -e
        source <("$FAIRLOCK" completions bash)
        [[ $(complete -p fairlock) =~ -F\ ([^ ]+) ]]
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        set +e
        "${BASH_REMATCH[1]}" fairlock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash")
        .args(["-c", script, "bash", "fairlock"])
        .args(words)
        .env("FAIRLOCK", FAIRLOCK)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    if !has("bash") {
        return;
    }
    assert_eq!(offers_of_bash(&["sta"]), ["status"]);
    assert_eq!(offers_of_bash(&["run", "--max"]), ["--max-hold"]);
    assert_eq!(offers_of_bash(&["run", "--on-lost", "wa"]), ["warn"]);
    assert_eq!(offers_of_bash(&["completions", "fi"]), ["fish"]);
    let all = offers_of_bash(&[""]);
    for command in COMMANDS {
        assert!(all.iter().any(|offer| offer == command), "{command}: {all:?}");
    }
}

#[tokio::test]
async fn manual_pages_are_read_by_groff_without_a_warning() {
    let overview = output(&["man"]).await;
    let mut pages = vec![("fairlock(1)".to_owned(), overview)];
    for command in COMMANDS {
        let page = output(&["man", command]).await;
        pages.push((format!("fairlock-{command}(1)"), page));
    }
    let ended = end_of(&mut fairlock(NOBODY, &["man", "help"])).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.err.contains("run, lead, hold"), "{ended:?}");
    if !has("groff") {
        return;
    }
    let folder = fairlock_testkit::TempDir::create();
    for (title, page) in pages {
        let file = folder.path().join("page");
        std::fs::write(&file, &page).unwrap();
        let mut groff = Command::new("groff");
        let output = groff
            .args(["-man", "-Tutf8", "-ww", "-P-cbou"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{title}: {output:?}"
        );
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.trim_start().starts_with(&title), "{text}");
        assert!(text.contains("NAME") && text.contains("SYNOPSIS"), "{text}");
    }
}
