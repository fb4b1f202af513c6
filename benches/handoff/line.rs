//! The lines of the table. Each is a hand-off that is measured again and again.

use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::quantile::quantile;
use fairlock_benches::wire::Wire;

/// One line of the table: a hand-off with some of the parts of a real one.
pub(crate) struct Line<'a> {
    what: &'static str,
    once: Box<dyn FnMut() -> Outcome<Duration> + 'a>,
    /// The server's name of the measured command. The server runs no other command of that name meanwhile.
    command: Option<&'static str>,
    /// The median of each round, in µs.
    medians: Vec<f64>,
    /// Calls of the command, and the time in µs that the server took for them.
    served: (f64, f64),
}

impl<'a> Line<'a> {
    pub(crate) fn new(
        what: &'static str,
        command: Option<&'static str>,
        once: Box<dyn FnMut() -> Outcome<Duration> + 'a>,
    ) -> Line<'a> {
        Line {
            what,
            once,
            command,
            medians: Vec::new(),
            served: (0.0, 0.0),
        }
    }

    /// Makes `hand_offs` hand-offs. Those of the first round only warm up, and do not count.
    pub(crate) fn block(&mut self, hand_offs: usize, counts: bool, wire: &mut Wire) -> Outcome<()> {
        let before = self.served(wire)?;
        let mut took = Vec::with_capacity(hand_offs);
        for _ in 0..hand_offs {
            took.push((self.once)()?.as_secs_f64() * 1e6);
        }
        let after = self.served(wire)?;
        if counts {
            self.medians.push(quantile(&mut took, 0.5));
            self.served.0 += after.0 - before.0;
            self.served.1 += after.1 - before.1;
        }
        Ok(())
    }

    fn middle(&self) -> f64 {
        quantile(&mut self.medians.clone(), 0.5)
    }

    /// How much longer it took than another line, round by round.
    fn more_than(&self, other: Option<&Line>) -> Vec<f64> {
        match other {
            Some(other) => {
                let both = self.medians.iter().zip(&other.medians);
                both.map(|(own, others)| own - others).collect()
            }
            None => self.medians.clone(),
        }
    }

    /// The server's statistics of the command so far.
    fn served(&self, wire: &mut Wire) -> Outcome<(f64, f64)> {
        let Some(command) = self.command else {
            return Ok((0.0, 0.0));
        };
        let info = wire.command(&["INFO", "commandstats"])?;
        let start = format!("cmdstat_{command}:");
        let fields = info.lines().find_map(|line| line.strip_prefix(&start));
        let value = |key| {
            let mut fields = fields.unwrap_or_default().split(',');
            fields.find_map(|field| field.strip_prefix(key)?.parse().ok())
        };
        Ok((value("calls=").unwrap_or(0.0), value("usec=").unwrap_or(0.0)))
    }
}

/// Prints the table. The difference to the line before is computed within each round, so that the machine's
/// other work affects both lines. For that reason the differences do not quite sum up to the last line, and
/// the rest is printed too.
pub(crate) fn print(lines: &[Line]) {
    println!(
        "{:<37} {:>7} {:>7} {:>17} {:>7}   of that, the server",
        "", "total", "more", "in half of rounds", "share"
    );
    let whole = lines.last().map(Line::middle).unwrap_or_default();
    let share = |part| 100.0 * part / whole;
    let mut sum = 0.0;
    let mut before = None;
    for line in lines {
        let mut more = line.more_than(before);
        let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(&mut more, part));
        let served = match line.served {
            (calls, usec) if calls > 0.0 => format!("{:.1}", usec / calls),
            _ => String::new(),
        };
        println!(
            "{:<37} {:>7.1} {middle:>7.1} {:>17} {:>5.0} %   {served}",
            line.what,
            line.middle(),
            format!("{low:.1} ... {high:.1}"),
            share(middle),
        );
        sum += middle;
        before = Some(line);
    }
    let rest = whole - sum;
    println!(
        "{:<37} {:>7} {rest:>7.1} {:>17} {:>5.0} %",
        "in none of the lines",
        "",
        "",
        share(rest)
    );
}
