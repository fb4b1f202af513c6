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
