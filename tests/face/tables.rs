//! Each row of a table has as many cells as its head. GitHub drops the cells that are too many.

use std::fs;
use std::path::{Path, PathBuf};

use super::root;

/// All Markdown pages of the repository, without those of builds and of what is hidden.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![root().to_owned()];
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let is_left_out =
                    name.starts_with('.') || name.starts_with("target") || name == "node_modules";
                folders.extend((!is_left_out).then_some(path));
            } else if name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The lines outside of blocks of code, with their numbers.
fn lines_of_prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let is_prose = |(_, line): &(usize, &str)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    };
    (1..).zip(text.lines()).filter(is_prose).collect()
}

/// The number of cells of a row. A pipe ends a cell, also in a span of code, unless a backslash is before it.
fn cells(row: &str) -> usize {
    let row = row.trim();
    let row = row.strip_prefix('|').unwrap_or(row);
    let mut ends = 0;
    let mut before = ' ';
    for c in row.chars() {
        ends += usize::from(c == '|' && before != '\\');
        before = c;
    }
    ends + usize::from(!row.ends_with('|') || row.ends_with("\\|"))
}

/// Whether this line is the one below a table's head.
fn is_rule(line: &str) -> bool {
    let line = line.trim();
    line.contains('-') && line.contains('|') && line.chars().all(|c| "|-: ".contains(c))
}

/// The rows whose number of cells is not that of the head, and how many rows there are.
fn check(page: &Path, text: &str) -> (Vec<String>, usize) {
    let mut uneven = Vec::new();
    let mut count = 0;
    let lines = lines_of_prose(text);
    for (at, _) in lines
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, (_, line))| is_rule(line))
    {
        let expected = cells(lines[at - 1].1);
        let rows = lines[at..]
            .iter()
            .take_while(|(_, line)| line.trim_start().starts_with('|'));
        for &(number, row) in rows {
            count += 1;
            let cells = cells(row);
            if cells != expected {
                uneven.push(format!(
                    "{}:{number}: {cells} cells, not {expected}",
                    page.display()
                ));
            }
        }
    }
    (uneven, count)
}

#[test]
fn rows_of_tables_have_the_cells_of_their_heads() {
    let mut uneven = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let (found, rows) = check(page.strip_prefix(root()).unwrap(), &text);
        uneven.extend(found);
        count += rows;
    }
    assert!(count > 300, "{count} rows");
    assert!(uneven.is_empty(), "{uneven:#?}");
}

#[test]
fn uneven_rows_are_found() {
    let text = "| a | b |\n|---|---:|\n| 1 | `x \\| y` |\n| 1 |\n| 1 | `x | y` |\n\n```sh\n| a |\n|---|\n| 1 | 2 |\n```\n";
    let expected = ["x.md:4: 1 cells, not 2", "x.md:5: 3 cells, not 2"];
    assert_eq!(
        check(Path::new("x.md"), text),
        (expected.map(str::to_owned).to_vec(), 4)
    );
}
