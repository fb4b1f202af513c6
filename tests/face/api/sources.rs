//! The modules of the crate as their sources have them, and what a path in one of them means.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Ident, Item, UseTree, Visibility};

/// The modules by their paths, such as `crate::manager::builder`, without those of tests.
#[derive(Debug)]
pub(super) struct Sources(BTreeMap<String, Module>);

#[derive(Debug)]
pub(super) struct Module {
    pub(super) items: Vec<Item>,
    /// The conditions (`cfg`) of the module and of those around it.
    pub(super) conditions: Vec<Attribute>,
    /// The paths that are imported, by the names that they have in this module.
    imports: BTreeMap<String, String>,
}

impl Sources {
    pub(super) fn read(lib: &Path) -> Sources {
        let mut sources = Sources(BTreeMap::new());
        let folder = lib.parent().expect("a folder");
        sources.add("crate".to_owned(), folder, items_of(lib), Vec::new());
        sources
    }

    /// A crate whose modules are all in one text.
    pub(super) fn of(text: &str) -> Sources {
        let mut sources = Sources(BTreeMap::new());
        let items = syn::parse_file(text).expect("Rust").items;
        sources.add("crate".to_owned(), Path::new("none"), items, Vec::new());
        sources
    }

    /// The folder is the one with the files of the module's own modules.
    fn add(&mut self, path: String, folder: &Path, mut items: Vec<Item>, conditions: Vec<Attribute>) {
        items.retain_mut(|item| !attributes(item).iter().any(is_for_tests));
        let mut imports = BTreeMap::new();
        for item in &mut items {
            match item {
                Item::Use(item) => imports.extend(leaves(&item.tree)),
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let items = match item.content.take() {
                        Some((_, items)) => items,
                        None => items_of(&file_of(&folder.join(&name))),
                    };
                    let mut inner = conditions.clone();
                    inner.extend(conditions_of(&item.attrs));
                    self.add(format!("{path}::{name}"), &folder.join(&name), items, inner);
                }
                Item::Macro(item) => {
                    let is_exported = item.attrs.iter().any(|attr| attr.path().is_ident("macro_export"));
                    let is_call = item.ident.is_none();
                    assert!(
                        !is_exported && !is_call,
                        "tests/face/api/ lists no macros, nor what they make"
                    );
                }
                _ => {}
            }
        }
        let module = Module {
            items,
            conditions,
            imports,
        };
        self.0.insert(path, module);
    }

    pub(super) fn module(&self, path: &str) -> Option<&Module> {
        self.0.get(path)
    }

    pub(super) fn modules(&self) -> impl Iterator<Item = (&str, &Module)> {
        self.0.iter().map(|(path, module)| (path.as_str(), module))
    }

    /// The path of the definition that a path in a module means. Paths of other crates are written in full;
    /// what is not imported keeps its name.
    pub(super) fn resolve(&self, module: &str, path: &str) -> String {
        let (first, rest) = path.split_once("::").unwrap_or((path, ""));
        match first {
            "crate" => self.follow(path),
            "self" => self.follow(&joined(module, rest)),
            "super" => {
                let (parent, _) = module.rsplit_once("::").expect("a module around this one");
                self.resolve(parent, if rest.is_empty() { "self" } else { rest })
            }
            name => match self.step(module, name) {
                Some(found) => self.follow(&joined(&found, rest)),
                None => path.to_owned(),
            },
        }
    }

    /// Goes from `crate` to the definition, through the imports on the way.
    fn follow(&self, path: &str) -> String {
        let mut names = path.split("::");
        let mut reached = names.next().expect("a first name").to_owned();
        for name in names {
            reached = self
                .step(&reached, name)
                .unwrap_or_else(|| joined(&reached, name));
        }
        reached
    }

    /// The definition with this name in a module.
    fn step(&self, module: &str, name: &str) -> Option<String> {
        let Module { items, imports, .. } = self.module(module)?;
        let mut names = items.iter().filter_map(definition).map(|(ident, ..)| ident);
        if names.any(|ident| ident == name) {
            return Some(joined(module, name));
        }
        let path = imports.get(name)?;
        // An import such as `use serde;` names a crate.
        if path == name {
            None
        } else {
            Some(self.resolve(module, path))
        }
    }
}

fn joined(path: &str, rest: &str) -> String {
    if rest.is_empty() {
        path.to_owned()
    } else {
        format!("{path}::{rest}")
    }
}

/// The file of a module with this folder.
fn file_of(folder: &Path) -> PathBuf {
    let inside = folder.join("mod.rs");
    if inside.exists() {
        inside
    } else {
        folder.with_extension("rs")
    }
}

fn items_of(path: &Path) -> Vec<Item> {
    let source = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    syn::parse_file(&source).expect("Rust").items
}

/// The names that a `use` brings in, with their paths.
pub(super) fn leaves(tree: &UseTree) -> Vec<(String, String)> {
    match tree {
        UseTree::Path(path) => {
            let prefix = path.ident.to_string();
            let inner = leaves(&path.tree).into_iter();
            inner
                .map(|(name, rest)| match (name.as_str(), rest.as_str()) {
                    ("self", _) => (prefix.clone(), prefix.clone()),
                    (_, "self") => (name, prefix.clone()),
                    _ => (name, joined(&prefix, &rest)),
                })
                .collect()
        }
        UseTree::Name(name) => vec![(name.ident.to_string(), name.ident.to_string())],
        UseTree::Rename(rename) => vec![(rename.rename.to_string(), rename.ident.to_string())],
        UseTree::Glob(_) => panic!("outside of tests, imports name what they import"),
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}

/// The name of what an item defines, who may use it, and its attributes.
pub(super) fn definition(item: &Item) -> Option<(&Ident, &Visibility, &[Attribute])> {
    match item {
        Item::Const(item) => Some((&item.ident, &item.vis, &item.attrs)),
        Item::Enum(item) => Some((&item.ident, &item.vis, &item.attrs)),
        Item::Fn(item) => Some((&item.sig.ident, &item.vis, &item.attrs)),
        Item::Mod(item) => Some((&item.ident, &item.vis, &item.attrs)),
        Item::Static(item) => Some((&item.ident, &item.vis, &item.attrs)),
        Item::Struct(item) => Some((&item.ident, &item.vis, &item.attrs)),
        Item::Trait(item) => Some((&item.ident, &item.vis, &item.attrs)),
        Item::Type(item) => Some((&item.ident, &item.vis, &item.attrs)),
        _ => None,
    }
}

/// The attributes of an item that can be public, or can hold such an item.
pub(super) fn attributes(item: &mut Item) -> &mut Vec<Attribute> {
    match item {
        Item::Const(item) => &mut item.attrs,
        Item::Enum(item) => &mut item.attrs,
        Item::Fn(item) => &mut item.attrs,
        Item::Impl(item) => &mut item.attrs,
        Item::Macro(item) => &mut item.attrs,
        Item::Mod(item) => &mut item.attrs,
        Item::Static(item) => &mut item.attrs,
        Item::Struct(item) => &mut item.attrs,
        Item::Trait(item) => &mut item.attrs,
        Item::Type(item) => &mut item.attrs,
        Item::Use(item) => &mut item.attrs,
        other => panic!("tests/face/api/ does not know such an item: {other:?}"),
    }
}

pub(super) fn conditions_of(attributes: &[Attribute]) -> Vec<Attribute> {
    let conditions = attributes.iter().filter(|attr| attr.path().is_ident("cfg"));
    conditions.cloned().collect()
}

/// If it is `#[cfg(test)]` or the like.
fn is_for_tests(attribute: &Attribute) -> bool {
    let Ok(condition) = attribute.meta.require_list() else {
        return false;
    };
    let condition = condition.tokens.to_string();
    let words: Vec<_> = condition.split(|c: char| !c.is_alphanumeric()).collect();
    let is_named = ["test", "doctest", "fuzzing"]
        .iter()
        .any(|name| words.contains(name));
    attribute.path().is_ident("cfg") && is_named && !words.contains(&"not")
}
