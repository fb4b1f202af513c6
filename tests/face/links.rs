//! The links of the documents lead to files and headings that exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::root;

/// The pages in this folder.
fn pages(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).expect("the pages");
    let mut pages: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    assert!(pages.len() >= 8, "{pages:?}");
    pages
}

/// All documents that people write. The records of the benches are partly written by programs.
pub(super) fn documents() -> Vec<PathBuf> {
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "tests/README.md",
        "tests/races.md",
        "benches/README.md",
        "lua/README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ];
    let mut documents = pages("docs");
    documents.extend(others.map(|path| root().join(path)));
    documents
}

/// Without its blocks of code.
pub(super) fn prose(text: &str) -> Vec<&str> {
    let mut in_code = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    };
    text.lines().filter(is_prose).collect()
}

/// Without its spans of code. An escape is not the end of a span.
fn without_code_spans(paragraph: &str) -> String {
    paragraph.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// The targets of `[text](target)` and of pictures.
fn targets(text: &str) -> Vec<String> {
    let lines = prose(text).join("\n");
    let paragraphs = lines.split("\n\n").map(without_code_spans);
    let of_paragraph = |paragraph: String| -> Vec<String> {
        let rests = paragraph.split("](").skip(1);
        rests
            .filter_map(|rest| rest.split_once(')'))
            .map(|(target, _)| target.trim().to_owned())
            .collect()
    };
    paragraphs.flat_map(of_paragraph).collect()
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let lines = prose(text);
    let headings = lines.iter().filter_map(|line| {
        let heading = line.trim_start_matches('#');
        let level = line.len() - heading.len();
        ((1..=6).contains(&level) && heading.starts_with(' ')).then(|| heading.trim())
    });
    headings
        .map(|heading| {
            let slug = slug(heading);
            let count = seen.entry(slug.clone()).or_default();
            *count += 1;
            match *count {
                1 => slug,
                count => format!("{slug}-{}", count - 1),
            }
        })
        .collect()
}

fn slug(heading: &str) -> String {
    // Of a link its text remains; the bracket before it goes with the other punctuation.
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    text.to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    let mut count = 0;
    for document in documents().into_iter().chain(pages("benches/measured")) {
        let text = fs::read_to_string(&document).expect("a document");
        let is_relative = |target: &String| !target.contains("://");
        for target in targets(&text).into_iter().filter(is_relative) {
            count += 1;
            let (path, anchor) = match target.split_once('#') {
                Some((path, anchor)) => (path, Some(anchor)),
                None => (target.as_str(), None),
            };
            let file = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let leads = match anchor {
                None => file.exists(),
                Some(anchor) => fs::read_to_string(&file)
                    .is_ok_and(|text| anchors(&text).iter().any(|heading| heading == anchor)),
            };
            if !leads {
                let from = document.strip_prefix(root()).unwrap();
                broken.push(format!("{}: {target}", from.display()));
            }
        }
    }
    assert!(count > 100, "{count} links");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_linked_from_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let linked = targets(&readme);
    for page in pages("docs") {
        let path = format!("docs/{}", page.file_name().unwrap().to_str().unwrap());
        assert!(linked.contains(&path), "{path}");
    }
}

#[test]
fn headings_have_the_anchors_that_github_gives_them() {
    let text = "# A lease, not a `mutex`\n\n## [Peers](x.md) & others\n\n```sh\n# no heading\n```\n\n## 10,000 tasks\n\n\
        ## `not_after`: 2 s\n\n## 10,000 tasks\n";
    let expected = [
        "a-lease-not-a-mutex",
        "peers--others",
        "10000-tasks",
        "not_after-2-s",
        "10000-tasks-1",
    ];
    assert_eq!(anchors(text), expected);
}

#[test]
fn links_are_found_outside_of_code_alone() {
    let text = "See [one\nthing](a.md#b) and `[no](link.md)`.\n\n```text\n[no](link.md)\n```\n\n[![badge](c.svg)](#d)\n";
    assert_eq!(targets(text), ["a.md#b", "c.svg", "#d"]);
}
