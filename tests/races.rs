//! The table of races in `tests/README.md` names tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// The tests of the table, such as `faults::waiters::…`: a test binary, or `lib` for the crate itself, and the path in it.
fn named() -> Vec<&'static str> {
    let table = include_str!("README.md").split("## Races").nth(1);
    let rows = table
        .expect("a table of races")
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
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{test}: no such file"))
}

#[test]
fn every_race_has_tests_that_exist() {
    let named = named();
    assert!(named.len() > 40, "{}", named.len());
    for test in named {
        let path = source(test);
        let source = fs::read_to_string(&path).expect("a source");
        let function = test.rsplit("::").next().unwrap_or_default();
        let is_there = source.contains(&format!("fn {function}("));
        assert!(is_there, "{test}: no such function in {}", path.display());
        for module in ["on_a_server", "on_a_real_server"] {
            if test.contains(&format!("::{module}::")) {
                // The first are made of the names in `on_both!`, the others are in that module.
                let is_on_both = source.lines().any(|line| line.trim() == format!("{function},"));
                assert_eq!(is_on_both, module == "on_a_server", "{test}: it is elsewhere");
            }
        }
    }
}
