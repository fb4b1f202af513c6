//! `fairlock completions` and `fairlock man`: what a shell and `man` need, from the definition of the
//! arguments.

use std::io::{self, Write, stdout};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Arguments;
use crate::exit::Failure;

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut definition = Arguments::command();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut definition, "fairlock", &mut text);
    write(&text)
}

/// The page of the command, or of one of its subcommands.
pub(crate) fn man(subcommand: Option<&str>) -> Result<u8, Failure> {
    let mut definition = Arguments::command();
    // Subcommands get their whole names by this.
    definition.build();
    let page = match subcommand {
        None => definition,
        Some(name) => page_of(&definition, name)?,
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    write(&text)
}

fn page_of(definition: &Command, name: &str) -> Result<Command, Failure> {
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    let found = definition.find_subcommand(name).filter(shown);
    let Some(command) = found else {
        let names = definition.get_subcommands().filter(shown).map(Command::get_name);
        return Err(Failure::usage(format!(
            "no command {name:?}: must be one of {}",
            names.collect::<Vec<_>>().join(", ")
        )));
    };
    Ok(command.clone().version(env!("CARGO_PKG_VERSION")))
}

fn write(text: &[u8]) -> Result<u8, Failure> {
    let write = |mut stdout: io::StdoutLock<'_>| stdout.write_all(text).and_then(|()| stdout.flush());
    write(stdout().lock())?;
    Ok(0)
}
