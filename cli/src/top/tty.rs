//! The terminal while `top` has it.

use std::io::{self, Stdout, stdout};
use std::panic;

use crossterm::cursor::Show;
use crossterm::event::{self, Event};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use tokio::sync::mpsc;

/// The terminal in raw mode, with a screen of its own. Dropping it gives the terminal back as it was, and so
/// does a panic.
pub(super) struct Tty {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Tty {
    pub(super) fn take() -> io::Result<Tty> {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |bug| {
            give_back();
            print(bug);
        }));
        enable_raw_mode()?;
        let taken = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match taken {
            Ok(terminal) => Ok(Tty { terminal }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// What is typed, and changes of the size. A thread of its own reads it, which nobody waits for.
    pub(super) fn events() -> mpsc::UnboundedReceiver<io::Result<Event>> {
        let (sender, events) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            loop {
                let event = event::read();
                let is_over = event.is_err();
                if sender.send(event).is_err() || is_over {
                    return;
                }
            }
        });
        events
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        give_back();
    }
}

/// A terminal that has gone needs nothing back.
fn give_back() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use nix::pty::openpty;
    use nix::sys::termios::{LocalFlags, tcgetattr};

    use super::*;

    const PANICS: &str = "top::tty::tests::panics_on_a_terminal";

    /// The program of the test below.
    #[test]
    #[ignore = "is run by another test, on a terminal"]
    fn panics_on_a_terminal() {
        let _tty = Tty::take().unwrap();
        // A panic of another thread unwinds nothing here.
        let _ = std::thread::spawn(|| panic!("a bug")).join();
        std::process::exit(9);
    }

    #[test]
    fn panic_gives_the_terminal_back_before_it_is_told() {
        let pty = openpty(None, None).unwrap();
        let end = |slave: &OwnedFd| Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        let started = command
            .args(["--exact", PANICS, "--ignored", "--nocapture"])
            .env("TERM", "xterm-256color")
            .stdin(end(&pty.slave))
            .stdout(end(&pty.slave))
            .stderr(end(&pty.slave))
            .status();
        assert_eq!(started.unwrap().code(), Some(9));
        let flags = tcgetattr(&pty.slave).unwrap().local_flags;
        assert!(flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG));
        // What was written is short, and waits to be read.
        let mut said = [0; 4096];
        let mut master = File::from(pty.master);
        let mut text = String::new();
        while !text.contains("a bug") {
            let count = master.read(&mut said).unwrap();
            text += &String::from_utf8_lossy(&said[..count]);
        }
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what:?} in {text:?}"));
        assert!(at("\u{1b}[?1049h") < at("\u{1b}[?1049l"), "{text:?}");
        assert!(at("\u{1b}[?1049l") < at("a bug"), "{text:?}");
    }
}
