//! Checks that the `use` lines respect the layers of `ARCHITECTURE.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A row of the table: a pattern of modules, their layer, and the layers that they may use.
struct Row {
    pattern: String,
    layer: String,
    may_use: BTreeSet<String>,
}

/// Returns the cells of the table that begins with this.
fn cells<const N: usize>(head: &str) -> Vec<[&'static str; N]> {
    let lines = include_str!("../../ARCHITECTURE.md").lines();
    let rows = lines.skip_while(|line| !line.starts_with(head)).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(|row| {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            cells
                .try_into()
                .unwrap_or_else(|_| panic!("not {N} cells: {row}"))
        })
        .collect()
}

/// The folders of `src/`, from the top down.
fn folders() -> Vec<&'static str> {
    let rows = cells("| folder | what it is |").into_iter();
    rows.map(|[folder, _]| folder.trim_matches('`')).collect()
}

fn table() -> Vec<Row> {
    let rows = cells("| layer | modules |").into_iter();
    rows.flat_map(|[layer, modules, uses]| {
        let may_use: BTreeSet<_> = (uses.split(", ").chain([layer]))
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        let patterns = modules
            .split(", ")
            .map(|module| module.trim_matches('`').to_owned());
        let row = |pattern| Row {
            pattern,
            layer: layer.to_owned(),
            may_use: may_use.clone(),
        };
        patterns.map(row).collect::<Vec<_>>()
    })
    .collect()
}

/// Returns the most specific row that matches a module.
fn row_of<'a>(table: &'a [Row], module: &str) -> Option<&'a Row> {
    let matches = |row: &&Row| match row.pattern.strip_suffix("::*") {
        Some(base) => module == base || module.starts_with(&format!("{base}::")),
        None => module == row.pattern,
    };
    table.iter().filter(matches).max_by_key(|row| row.pattern.len())
}

/// Returns the sources of the production modules, by module.
fn modules() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        for path in entries.filter(|path| path.file_stem().unwrap() != "tests") {
            if path.is_dir() {
                folders.push(path);
            } else {
                let module = module_of(path.strip_prefix(&root).unwrap());
                found.insert(module, production(&fs::read_to_string(path).unwrap()));
            }
        }
    }
    found
}

fn module_of(file: &Path) -> String {
    let path: PathBuf = match file.ends_with("mod.rs") {
        true => file.parent().unwrap().to_owned(),
        false => file.with_extension(""),
    };
    let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
    parts.join("::")
}

/// Removes comments, tests at the end, and items that exist only in tests.
fn production(source: &str) -> String {
    let source = source
        .split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let mut lines = Vec::new();
    let mut is_tested = false;
    for line in source.lines().map(str::trim) {
        if !is_tested && !line.starts_with("//") {
            lines.push(without_visibility(line));
        }
        is_tested = line == "#[cfg(test)]";
    }
    lines.join("\n")
}

/// Removes `pub(in crate::…)`, which names a module without using it.
fn without_visibility(line: &str) -> &str {
    let inside = line.strip_prefix("pub(in ");
    inside
        .and_then(|inside| inside.split_once(") "))
        .map_or(line, |(_, item)| item)
}

/// Returns the modules that a module names, by paths from the crate's root, from itself or from its
/// ancestors.
fn used(modules: &BTreeMap<String, String>, module: &str) -> BTreeSet<String> {
    let own: Vec<_> = match module {
        "lib" => Vec::new(),
        module => module.split("::").collect(),
    };
    let source = &modules[module];
    let starts = ["crate::", "self::", "super::"].into_iter();
    let places = starts.flat_map(|start| source.match_indices(start).map(|(at, _)| at));
    let is_first = |at: &usize| !source[..*at].ends_with([':', '_']);
    places
        .filter(is_first)
        .map(|at| {
            let end = source[at..].find(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
            let mut path: Vec<_> = Vec::new();
            let mut parts = source[at..]
                .get(..end.unwrap_or(source.len() - at))
                .unwrap()
                .split("::");
            if parts.next() == Some("super") {
                path.extend(&own[..own.len() - 1]);
            } else if !source[at..].starts_with("crate") {
                path.extend(&own);
            }
            for part in parts {
                if part == "super" {
                    path.pop();
                } else {
                    path.push(part);
                }
            }
            while !path.is_empty() && !modules.contains_key(&path.join("::")) {
                path.pop();
            }
            match path.is_empty() {
                true => "lib".to_owned(),
                false => path.join("::"),
            }
        })
        .collect()
}

#[test]
fn no_module_uses_one_of_a_layer_above_it() {
    let (table, modules) = (table(), modules());
    assert!(
        table.len() > 20 && modules.len() > 50,
        "the table and the modules are found"
    );
    let mut wrong = Vec::new();
    for module in modules.keys() {
        let Some(row) = row_of(&table, module) else {
            wrong.push(format!("{module} is in no layer"));
            continue;
        };
        for used in used(&modules, module) {
            let layer = row_of(&table, &used).map(|row| row.layer.as_str());
            if layer.is_some_and(|layer| !row.may_use.contains(layer)) {
                wrong.push(format!(
                    "{module} ({}) uses {used} ({})",
                    row.layer,
                    layer.unwrap_or_default()
                ));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn each_layer_uses_only_layers_below_it() {
    let table = table();
    let mut below: BTreeSet<&str> = BTreeSet::new();
    for row in table.iter().rev() {
        let above = row
            .may_use
            .iter()
            .find(|used| **used != row.layer && !below.contains(used.as_str()));
        assert_eq!(above, None, "used by {}", row.layer);
        below.insert(&row.layer);
    }
}

#[test]
fn no_module_uses_a_folder_above_its_own() {
    let (folders, modules) = (folders(), modules());
    let of = |module: &str| {
        let folder = module.split("::").next().unwrap();
        folders.iter().position(|known| *known == folder)
    };
    let mut wrong = Vec::new();
    for module in modules.keys().filter(|module| *module != "lib") {
        let place = of(module).unwrap_or_else(|| panic!("{module} is in no folder"));
        let used = used(&modules, module).into_iter();
        wrong.extend(
            used.filter(|used| of(used).is_none_or(|of| of < place))
                .map(|used| (module, used)),
        );
    }
    assert_eq!(wrong, []);
}
