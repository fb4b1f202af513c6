//! A PostgreSQL server, where its programs are installed.

use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::names::free_port;
use crate::server_process::ServerProcess;

/// A server on a loopback port, with a database of its own in a temporary folder. Ends with this value.
#[derive(Debug)]
pub struct Postgres {
    pub url: String,
    /// Product and version.
    pub version: String,
    pub process: ServerProcess,
}

impl Postgres {
    /// Whether there is a server to start.
    pub fn is_installed() -> bool {
        programs().is_some()
    }

    pub fn start() -> io::Result<Postgres> {
        let programs =
            programs().ok_or_else(|| io::Error::other("no initdb and postgres: install PostgreSQL"))?;
        let port = free_port().to_string();
        let folder = std::env::temp_dir().join(format!("fairlock-postgres-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let account = Account::of_postgres(&folder)?;
        let made = account
            .run(programs.join("initdb"))
            .args([
                "--pgdata",
                "data",
                "--auth",
                "trust",
                "--username",
                "postgres",
                "--no-sync",
            ])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .output()?;
        if !made.status.success() {
            std::fs::remove_dir_all(&folder)?;
            let said = String::from_utf8_lossy(&made.stderr);
            return Err(io::Error::other(format!("initdb: {}", said.trim())));
        }
        let mut command = account.run(programs.join("postgres"));
        command
            .args(["-D", "data", "-h", "127.0.0.1", "-p", &port, "-N", "2000", "-k"])
            .arg(&folder);
        let mut process = ServerProcess::start(&mut command, folder, "QUIT")?;
        process.wait_until(|| {
            Command::new(programs.join("pg_isready"))
                .args(["--quiet", "-h", "127.0.0.1", "-p", &port])
                .status()
                .is_ok_and(|status| status.success())
        })?;
        let said = Command::new(programs.join("postgres"))
            .arg("--version")
            .output()?;
        let version = String::from_utf8_lossy(&said.stdout);
        Ok(Postgres {
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            version: version.trim().replace("postgres (PostgreSQL)", "PostgreSQL"),
            process,
        })
    }
}

/// The folder of PostgreSQL's programs, which distributions keep off the PATH.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).collect::<Vec<_>>();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut packaged: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .collect();
    packaged.sort();
    let complete = |folder: &PathBuf| {
        ["initdb", "postgres", "pg_isready"]
            .iter()
            .all(|program| folder.join(program).exists())
    };
    packaged.into_iter().rev().chain(on_path).find(complete)
}

/// The user that PostgreSQL runs as: it refuses to run as root.
#[derive(Debug)]
struct Account {
    ids: Option<(u32, u32)>,
}

impl Account {
    fn of_postgres(folder: &Path) -> io::Result<Account> {
        if std::fs::metadata(folder)?.uid() != 0 {
            return Ok(Account { ids: None });
        }
        // The package creates the user, and this folder is the user's home.
        let home = std::fs::metadata("/var/lib/postgresql")?;
        chown(folder, Some(home.uid()), Some(home.gid()))?;
        Ok(Account {
            ids: Some((home.uid(), home.gid())),
        })
    }

    fn run(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        if let Some((user, group)) = self.ids {
            command.uid(user).gid(group);
        }
        command
    }
}
