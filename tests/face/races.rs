//! The tables of promises and of races in `tests/README.md` name tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// The tests of the tables, such as `servers::faults::…`: a test binary, or `lib` for the crate itself, and the path in it.
fn named() -> Vec<&'static str> {
    let tables = include_str!("../README.md").split("## Promises").nth(1);
    let rows = tables
        .expect("a table of promises")
        .lines()
        .filter(|line| line.starts_with("| "));
    rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect()
}

/// The file of the innermost module on the path that has one.
fn source(test: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let modules: Vec<&str> = test.split("::").collect();
    let (base, modules) = match modules.split_first() {
        Some((&"lib", modules)) => (root.join("src"), modules),
        Some((binary, modules)) => (root.join("tests").join(binary), modules),
        None => panic!("no test: {test}"),
    };
    (0..modules.len())
        .rev()
        .map(|depth| {
            modules[..depth]
                .iter()
                .fold(base.clone(), |path, module| path.join(module))
        })
        .map(|path| path.with_extension("rs"))
        .chain([base.join("main.rs")])
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{test}: no such file"))
}

/// The names in a macro call such as `on_each_backend! { … }`, which makes a test of each.
fn listed(source: &str, call: &str) -> Vec<String> {
    let block = source.split(&format!("\n{call} {{")).nth(1).unwrap_or_default();
    let names = block.split('}').next().unwrap_or_default();
    names.split(',').map(|name| name.trim().to_owned()).collect()
}

#[test]
fn every_promise_and_every_race_has_tests_that_exist() {
    let named = named();
    assert!(named.len() > 40, "{}", named.len());
    for test in named {
        let path = source(test);
        let source = fs::read_to_string(&path).expect("a source");
        let (rest, last) = test.rsplit_once("::").expect("a path");
        let in_parallel = rest.split_once("::in_parallel::").map(|(_, function)| function);
        let function = in_parallel.unwrap_or(last);
        let is_there = source.contains(&format!("fn {function}("));
        assert!(is_there, "{test}: no such function in {}", path.display());
        // Of a function that is no test itself, the module is made by a macro.
        let made_by = match (in_parallel, rest.ends_with("::on_a_server")) {
            (Some(_), _) => "on_each_backend_in_parallel!",
            (None, true) => "on_each_backend!",
            (None, false) => continue,
        };
        let is_listed = listed(&source, made_by).iter().any(|name| name == function);
        assert!(is_listed, "{test}: {function} is not in {made_by}");
    }
}
