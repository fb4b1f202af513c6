//! The tests that the documents name exist, and the table of races is up to date.
//!
//! The table in `tests/races.md` is generated from the `/// Race: …` paragraphs over the tests. Each of them
//! says what would go wrong without the code that the test covers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::root;

const BEGIN: &str = "<!-- races: made of the tests' documentation -->\n";
const END: &str = "<!-- end of races -->\n";

/// The crate itself and the test binaries.
const TARGETS: [&str; 5] = ["lib", "promises", "servers", "campaigns", "face"];

/// A test, with the races in its documentation.
#[derive(Debug)]
struct Test {
    /// Its target, and its path within that target, such as `servers::faults::…`.
    path: String,
    races: Vec<String>,
}

/// All tests of the crate and of its test binaries.
fn tests() -> Vec<Test> {
    let folder = |target| match target {
        "lib" => root().join("src"),
        binary => root().join("tests").join(binary),
    };
    let of_target = |target| in_folder(&folder(target), target);
    TARGETS.into_iter().flat_map(of_target).collect()
}

fn in_folder(folder: &Path, module: &str) -> Vec<Test> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths: BTreeSet<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let mut tests = Vec::new();
    for path in paths {
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        let inner = match name {
            "lib" | "main" | "mod" => module.to_owned(),
            name => format!("{module}::{name}"),
        };
        if path.is_dir() {
            tests.extend(in_folder(&path, &inner));
        } else {
            let source = fs::read_to_string(&path).expect("a source");
            tests.extend(in_source(&source, &inner));
        }
    }
    tests
}

/// The tests of one file. Files are formatted, so a module ends at the closing brace that has the indentation
/// of its `mod`.
fn in_source(source: &str, module: &str) -> Vec<Test> {
    let twice = listed(source, "on_each_backend!");
    let in_parallel = listed(source, "on_each_backend_in_parallel!");
    let outside = listed(source, "outside_of_runtimes!");
    let in_quorums = listed(source, "in_a_quorum!");
    let (mut tests, mut modules) = (Vec::new(), vec![module.to_owned()]);
    let (mut docs, mut is_test) = (Vec::new(), false);
    for line in source.lines() {
        let code = line.trim_start();
        let depth = (line.len() - code.len()) / 4;
        if let Some(doc) = code.strip_prefix("///") {
            docs.push(doc.trim());
        } else if code.starts_with("#[") {
            is_test |= code == "#[test]" || code.starts_with("#[tokio::test");
        } else if let Some(name) = function(code) {
            let path = modules.join("::");
            let path = if is_test {
                Some(format!("{path}::{name}"))
            } else if twice.contains(name) || outside.contains(name) {
                Some(format!("{path}::on_a_server::{name}"))
            } else if in_parallel.contains(name) {
                Some(format!("{path}::in_parallel::{name}::on_a_server"))
            } else {
                None
            };
            if in_quorums.contains(name) {
                tests.push(Test {
                    path: format!("{module}::in_a_quorum_of_servers::{name}"),
                    races: Vec::new(),
                });
            }
            let races = races(&docs);
            match path {
                Some(path) => tests.push(Test { path, races }),
                None => assert!(races.is_empty(), "{name} of {module} is not a test: {races:?}"),
            }
            (docs, is_test) = (Vec::new(), false);
        } else {
            if let Some(name) = code.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
                modules.truncate(depth + 1);
                modules.push(name.to_owned());
            } else if code == "}" {
                modules.truncate(depth + 1);
            }
            (docs, is_test) = (Vec::new(), false);
        }
    }
    tests
}

/// The name of the function that starts on this line.
fn function(code: &str) -> Option<&str> {
    let code = code.strip_prefix("async ").unwrap_or(code);
    code.strip_prefix("fn ")?.split('(').next()
}

/// The names in a macro call such as `on_each_backend! { … }`, which makes a test of each.
fn listed<'a>(source: &'a str, call: &str) -> BTreeSet<&'a str> {
    let block = source.split(&format!("\n{call} {{")).nth(1).unwrap_or_default();
    let names = block.split('}').next().unwrap_or_default();
    names.split(',').map(str::trim).collect()
}

/// The paragraphs that begin with `Race:`, without their full stops.
fn races(docs: &[&str]) -> Vec<String> {
    let paragraphs = docs.split(|line| line.is_empty()).map(|lines| lines.join(" "));
    let race = |text: String| Some(text.strip_prefix("Race: ")?.trim_end_matches('.').to_owned());
    paragraphs.filter_map(race).collect()
}

/// A row for each race, with its tests.
fn table(tests: &[Test]) -> String {
    let mut rows: Vec<&str> = Vec::new();
    let mut shown_by: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for test in tests {
        for race in &test.races {
            let shown_by = shown_by.entry(race).or_default();
            if shown_by.is_empty() {
                rows.push(race);
            }
            shown_by.push(&test.path);
        }
    }
    let mut table = "| race | tests |\n|---|---|\n".to_owned();
    for race in rows {
        let tests: Vec<_> = shown_by[race].iter().map(|path| format!("`{path}`")).collect();
        table += &format!("| {race} | {} |\n", tests.join(" "));
    }
    table
}

#[test]
fn every_test_that_a_document_names_exists() {
    let tests = tests();
    // A document may also name a module of tests.
    let is_there = |named: &str| {
        let rests = tests.iter().filter_map(|test| test.path.strip_prefix(named));
        rests
            .into_iter()
            .any(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    for (document, at_least) in [
        (include_str!("../races.md"), 200),
        (include_str!("../../ARCHITECTURE.md"), 15),
    ] {
        let quoted = document.split('`').skip(1).step_by(2);
        let is_path = |quote: &&str| quote.contains("::") && !quote.ends_with("::") && !quote.contains(' ');
        let of_test = |quote: &&str| {
            TARGETS
                .iter()
                .any(|target| quote.starts_with(&format!("{target}::")))
        };
        // The layer `servers` has the name of a test binary.
        let is_module = |quote: &&str| {
            let path = root()
                .join("src")
                .join(quote.trim_end_matches("::*").replace("::", "/"));
            path.exists() || path.with_extension("rs").exists()
        };
        let named = quoted.filter(is_path).filter(of_test);
        let named: Vec<&str> = named.filter(|quote| !is_module(quote)).collect();
        assert!(named.len() >= at_least, "{named:?}");
        for test in named {
            assert!(is_there(test), "there is no test {test}");
        }
    }
}

/// With `UPDATE=1` in the environment, this test writes the table instead of checking it.
#[test]
fn table_of_races_says_what_the_tests_say() {
    let path = root().join("tests/races.md");
    let page = fs::read_to_string(&path).expect("the page of races");
    let (before, rest) = page.split_once(BEGIN).expect("where the table begins");
    let (present, after) = rest.split_once(END).expect("where the table ends");
    let table = table(&tests());
    assert!(table.lines().count() > 80, "{table}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, [before, BEGIN, &table, END, after].concat()).expect("a page that can be written");
    } else {
        let is_equal = present == table;
        assert!(
            is_equal,
            "UPDATE=1 cargo test --test face races writes the table again"
        );
    }
}
