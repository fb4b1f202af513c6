//! The lines of documents and comments are short, and so are the files of the code that ships.

use std::fs;
use std::path::{Path, PathBuf};

use super::links::{documents, prose};
use super::root;

/// Where a line ends, apart from tables, code and strings.
const WIDTH: usize = 110;

/// A longer file is more than one unit.
const LENGTH: usize = 700;

fn check(path: &Path, line: &str) {
    assert!(line.chars().count() <= WIDTH, "{}: {line}", path.display());
}

#[test]
fn lines_of_the_documents_are_short() {
    for page in documents().into_iter().chain([root().join("CHANGELOG.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        // A picture, a badge and the name of a test have a line to themselves.
        let is_alone = |line: &str| line.starts_with('!') || line.split_whitespace().count() <= 2;
        let is_text = |line: &&str| !line.starts_with('|') && !line.starts_with("    ") && !is_alone(line);
        for line in prose(&text).into_iter().filter(is_text) {
            check(&page, line);
        }
    }
}

/// The Rust and Lua files of these folders.
fn sources(folders: &[&str]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut sources = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(path).unwrap();
            paths.extend(entries.map(|entry| entry.unwrap().path()));
        } else if comment(&path).is_some() {
            sources.push(path);
        }
    }
    sources
}

/// What begins a comment in this file.
fn comment(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "rs" => Some("//"),
        "lua" => Some("--"),
        _ => None,
    }
}

#[test]
fn comments_are_short() {
    let mut count = 0;
    for path in sources(&["src", "lua", "tests", "benches", "examples", "cli"]) {
        let begin = comment(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        // What follows code may be as long as the code.
        for line in text.lines().filter(|line| line.trim_start().starts_with(begin)) {
            check(&path, line);
            count += 1;
        }
    }
    assert!(count > 5000, "{count} lines");
}

#[test]
fn files_that_ship_are_short() {
    let is_test = |path: &PathBuf| path.iter().any(|part| part == "tests" || part == "tests.rs");
    let shipped: Vec<PathBuf> = sources(&["src", "lua", "cli/src"])
        .into_iter()
        .filter(|path| !is_test(path))
        .collect();
    for path in &shipped {
        let lines = fs::read_to_string(path).unwrap().lines().count();
        assert!(lines <= LENGTH, "{}: {lines} lines", path.display());
    }
    assert!(shipped.len() > 100, "{} files", shipped.len());
}
