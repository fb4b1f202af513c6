//! A terminal for a program, and what is on its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Command as Plain, Stdio};
use std::sync::{Arc, Mutex};

use fairlock_testkit::eventually;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use vt100::Parser;

use crate::scene::{LIMIT, program};

/// A program that is the leader of a session on this terminal.
pub(crate) struct Pty {
    master: File,
    /// The program's end, which stays open, so that it can be asked and resized afterwards.
    slave: OwnedFd,
    child: Child,
    parser: Arc<Mutex<Parser>>,
}

impl Pty {
    /// Starts the program with these arguments. `None` if this machine has no `setsid` that can do that.
    /// Unless it is told to read, nothing reads what the program writes.
    pub(crate) fn start(path: &str, args: &[&str], url: &str, (rows, cols): (u16, u16)) -> Option<Pty> {
        let works = Plain::new("setsid")
            .args(["--wait", "true"])
            .stdin(Stdio::null())
            .status();
        if !works.is_ok_and(|status| status.success()) {
            eprintln!("skipped: no `setsid` of util-linux");
            return None;
        }
        let size = Winsize {
            ws_row: rows,
            ws_col: cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command: Command = program("setsid", url);
        command
            .args(["--ctty", path])
            .args(args)
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end());
        let child = command.spawn().unwrap();
        Some(Pty {
            master: File::from(pty.master),
            slave: pty.slave,
            child,
            parser: Arc::new(Mutex::new(Parser::new(some(rows), some(cols), 0))),
        })
    }

    /// Reads all that is written from now on.
    pub(crate) fn read(&self) {
        let mut master = self.master.try_clone().unwrap();
        let parser = Arc::clone(&self.parser);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                parser.lock().unwrap().process(&buffer[..count]);
            }
        });
    }

    pub(crate) fn screen(&self) -> String {
        self.parser.lock().unwrap().screen().contents()
    }

    /// The first line of the screen with this text.
    pub(crate) fn line_with(&self, text: &str) -> Option<String> {
        let screen = self.screen();
        screen.lines().find(|line| line.contains(text)).map(str::to_owned)
    }

    pub(crate) async fn until(&self, what: &str, mut is_so: impl FnMut(&str) -> bool) {
        let is_so = timeout(LIMIT, eventually(what, 2 * LIMIT, async || is_so(&self.screen())));
        assert!(is_so.await.is_ok(), "never {what}:\n{}", self.screen());
    }

    pub(crate) fn type_in(&self, keys: &str) {
        (&self.master).write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, (rows, cols): (u16, u16)) {
        self.parser.lock().unwrap().set_size(some(rows), some(cols));
        let mut stty = Plain::new("stty");
        let (rows, cols) = (rows.to_string(), cols.to_string());
        stty.args(["rows", &rows, "cols", &cols])
            .stdin(self.slave.try_clone().unwrap());
        assert!(stty.status().unwrap().success());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    pub(crate) async fn code(&mut self) -> Option<i32> {
        timeout(LIMIT, self.child.wait()).await.unwrap().unwrap().code()
    }

    /// Whether the terminal is as a shell wants it: it echoes, and shows its own screen and the cursor.
    pub(crate) fn is_clean(&self) -> bool {
        let flags = tcgetattr(&self.slave).unwrap().local_flags;
        let parser = self.parser.lock().unwrap();
        let screen = parser.screen();
        flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
            && !screen.alternate_screen()
            && !screen.hide_cursor()
    }
}

fn some(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).unwrap()
}
