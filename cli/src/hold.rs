//! `fairlock hold`: a lock for a script, or several.

use std::io::{self, IsTerminal, Read, stdin};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::oneshot;

use crate::args::Hold;
use crate::connection::Place;
use crate::exit::{Failure, IO, LOST};
use crate::output::{self, Sink};
use crate::report::Report;
use crate::signals::Signals;
use crate::taking::Held;

pub(crate) async fn hold(hold: &Hold) -> Result<u8, Failure> {
    let place = Place::of(&hold.connection)?;
    let report = Report::of(&hold.taking)?;
    let mut signals = Signals::catch()?;
    let mut held = Held::take(&hold.taking, &place, None, &mut signals, &report).await?;
    let fences = held.fences(&hold.taking);
    // A script may do its work, and end, before this process knows that the fence is written.
    held.begin_work();
    let unwritten = output::write_or_tell(Sink::Stdout, format!("{fences}\n").into_bytes());
    tokio::select! {
        Some(error) = failed(unwritten) => {
            held.end_work_undone();
            held.give_back(&mut signals, &report).await;
            return Err(Failure::new(IO, format!("the fence cannot be written: {error}")));
        }
        _ = signals.next() => {}
        () = end_of_stdin() => {}
        () = held.lost() => {
            held.tell_of_loss(&report);
            held.give_up().await;
            return Ok(LOST);
        }
    }
    held.give_back(&mut signals, &report).await;
    Ok(0)
}

/// Why the fence was not written. A script that does not want to read it holds the lock all the same.
async fn failed(unwritten: oneshot::Receiver<io::Error>) -> Option<io::Error> {
    let error = unwritten.await.ok();
    error.filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
}

/// Waits for the end of stdin, if somebody can write to it. A file and `/dev/null`, which a shell gives to
/// its jobs in the background, are at their end from the beginning, and say nothing by that.
async fn end_of_stdin() {
    let (sender, ended) = oneshot::channel();
    if is_written_to() {
        // A thread of its own, which nobody waits for: it may read for ever.
        std::thread::spawn(move || {
            // A read of the terminal from the background would stop this process, with the lock.
            let _ = SigSet::from_iter([Signal::SIGTTIN]).thread_block();
            let mut buffer = [0; 4096];
            loop {
                match stdin().read(&mut buffer) {
                    Ok(0) => break,
                    Ok(_) => {}
                    // In the background there is nothing to read. It may come to the foreground.
                    Err(_) => std::thread::sleep(Duration::from_secs(1)),
                }
            }
            let _ = sender.send(());
        });
        let _ = ended.await;
    } else {
        std::future::pending::<()>().await;
    }
}

fn is_written_to() -> bool {
    let file = stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
    let kind = file
        .and_then(|file| file.metadata())
        .map(|metadata| metadata.file_type());
    stdin().is_terminal() || kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())
}
