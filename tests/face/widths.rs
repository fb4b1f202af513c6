//! The lines of documents and comments are short.

use std::fs;
use std::path::{Path, PathBuf};

use super::links::{documents, prose};
use super::root;

/// Where a line ends, apart from tables, code and strings.
const WIDTH: usize = 110;

fn check(path: &Path, line: &str) {
    assert!(line.chars().count() <= WIDTH, "{}: {line}", path.display());
}

#[test]
fn lines_of_the_documents_are_short() {
    let others = ["CHANGELOG.md", "CONTRIBUTING.md"].map(|path| root().join(path));
    for page in documents().into_iter().chain(others) {
        let text = fs::read_to_string(&page).unwrap();
        // A picture, a badge and the name of a test have a line to themselves.
        let is_alone = |line: &str| line.starts_with('!') || line.split_whitespace().count() <= 2;
        let is_text = |line: &&str| !line.starts_with('|') && !line.starts_with("    ") && !is_alone(line);
        for line in prose(&text).into_iter().filter(is_text) {
            check(&page, line);
        }
    }
}

#[test]
fn comments_are_short() {
    let folders = ["src", "lua", "tests", "benches", "examples", "cli"];
    let mut paths: Vec<PathBuf> = folders.map(|folder| root().join(folder)).into();
    let mut count = 0;
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(path).unwrap();
            paths.extend(entries.map(|entry| entry.unwrap().path()));
            continue;
        }
        let begin = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => "//",
            Some("lua") => "--",
            _ => continue,
        };
        let text = fs::read_to_string(&path).unwrap();
        // What follows code may be as long as the code.
        for line in text.lines().filter(|line| line.trim_start().starts_with(begin)) {
            check(&path, line);
            count += 1;
        }
    }
    assert!(count > 5000, "{count} lines");
}
