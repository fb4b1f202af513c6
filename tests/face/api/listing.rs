//! What users of the crate can name, as a text with a section for each name.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{Visit, visit_path};
use syn::visit_mut::{VisitMut, visit_item_struct_mut, visit_path_mut};
use syn::{
    Attribute, Block, Field, Fields, Ident, ImplItem, Item, ItemImpl, ItemStruct, PatIdent, Path,
    PathArguments, Receiver, Visibility, parse_quote,
};

use super::sources::{Module, Sources, attributes, conditions_of, definition, leaves};

/// The public names by the paths of their definitions, with the conditions of their re-exports.
type Names = BTreeMap<String, (String, Vec<Attribute>)>;

/// What is listed under one public name.
#[derive(Default)]
struct Section {
    definition: String,
    /// The public items of the `impl` blocks without a trait, by the line that opens the block. Blocks with
    /// the same first line are listed as one, so that a method can move to another file.
    methods: BTreeMap<String, ItemImpl>,
    traits: BTreeSet<String>,
}

pub(super) fn listing(sources: &Sources) -> String {
    let mut names = Names::new();
    find_names(sources, "crate", "", &mut names);
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    for (path, (name, _)) in &names {
        let section = sections.entry(name.clone()).or_default();
        if !path.starts_with("crate::") {
            section.definition = format!("pub use {path};\n");
        }
    }
    for (path, module) in sources.modules() {
        let scope = Scope {
            sources,
            names: &names,
            module: path,
        };
        for item in &module.items {
            scope.list(item, &module.conditions, &mut sections);
        }
    }
    let texts = sections.iter().map(|(name, section)| section.text(name));
    texts.collect()
}

/// Adds the public names of a module and of its public modules.
fn find_names(sources: &Sources, path: &str, prefix: &str, names: &mut Names) {
    let Module { items, .. } = sources.module(path).expect("a module");
    let mut add = |target: String, name: String, conditions: Vec<Attribute>| {
        if sources.module(&target).is_some() {
            find_names(sources, &target, &format!("{prefix}{name}::"), names);
        } else {
            names.insert(target, (format!("{prefix}{name}"), conditions));
        }
    };
    for item in items {
        match item {
            Item::Use(item) if is_listed(&item.vis, &item.attrs) => {
                for (name, target) in leaves(&item.tree) {
                    add(sources.resolve(path, &target), name, conditions_of(&item.attrs));
                }
            }
            item => {
                let listed = definition(item).filter(|(_, visibility, attrs)| is_listed(visibility, attrs));
                if let Some((name, ..)) = listed {
                    add(format!("{path}::{name}"), name.to_string(), Vec::new());
                }
            }
        }
    }
}

fn is_listed(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    let is_hidden =
        |attribute: &Attribute| attribute.parse_args::<Ident>().is_ok_and(|word| word == "hidden");
    matches!(visibility, Visibility::Public(_)) && !attributes.iter().any(is_hidden)
}

fn printed(item: Item) -> String {
    let items = vec![item];
    prettyplease::unparse(&syn::File {
        shebang: None,
        frontmatter: None,
        attrs: Vec::new(),
        items,
    })
}

impl Section {
    fn text(&self, name: &str) -> String {
        let methods = self.methods.values().cloned().map(|mut block| {
            block.items.sort_by_key(|item| match item {
                ImplItem::Const(item) => (0, item.ident.to_string()),
                ImplItem::Type(item) => (1, item.ident.to_string()),
                ImplItem::Fn(item) => (2, item.sig.ident.to_string()),
                other => panic!("tests/face/api/ does not know such an item: {other:?}"),
            });
            printed(Item::Impl(block))
        });
        let mut text = format!("\n// {name}\n{}", self.definition);
        text.extend(methods);
        text.extend(self.traits.iter().map(String::as_str));
        text
    }
}

/// A module, whose items are listed as their users see them.
#[derive(Clone, Copy)]
struct Scope<'a> {
    sources: &'a Sources,
    names: &'a Names,
    module: &'a str,
}

impl Scope<'_> {
    fn list(self, item: &Item, conditions: &[Attribute], sections: &mut BTreeMap<String, Section>) {
        if let Item::Impl(block) = item {
            let Some(name) = self.subject(block) else { return };
            let section = sections.get_mut(name).expect("a section of every name");
            self.list_impl(block.clone(), conditions, section);
        } else if let Some((ident, ..)) = definition(item) {
            let Some((name, of_export)) = self.names.get(&format!("{}::{ident}", self.module)) else {
                return;
            };
            let mut item = item.clone();
            let mut all = [of_export, conditions].concat();
            all.append(attributes(&mut item));
            all.dedup();
            let section = sections.get_mut(name).expect("a section of every name");
            section.traits.extend(self.derived(&item, &all));
            *attributes(&mut item) = all;
            section.definition = self.seen(item);
        }
    }

    fn list_impl(mut self, mut block: ItemImpl, conditions: &[Attribute], section: &mut Section) {
        block.attrs.splice(..0, conditions.iter().cloned());
        let is_of_trait = block.trait_.is_some();
        block.items.retain(|item| match item {
            ImplItem::Const(item) => is_of_trait || is_listed(&item.vis, &item.attrs),
            ImplItem::Type(item) => is_of_trait || is_listed(&item.vis, &item.attrs),
            ImplItem::Fn(item) => !is_of_trait && is_listed(&item.vis, &item.attrs),
            _ => false,
        });
        if is_of_trait {
            section.traits.insert(self.seen(Item::Impl(block)));
        } else if !block.items.is_empty() {
            self.visit_item_impl_mut(&mut block);
            let items = std::mem::take(&mut block.items);
            let first_line = printed(Item::Impl(block.clone()));
            section
                .methods
                .entry(first_line)
                .or_insert(block)
                .items
                .extend(items);
        }
    }

    /// The public name under which an `impl` is listed, if it mentions no private type or trait: that of its
    /// type, or as in `impl From<Fence> for u64`, that of its trait.
    fn subject(&self, block: &ItemImpl) -> Option<&str> {
        let mut mentioned = Mentioned(self, Vec::new());
        mentioned.visit_type(&block.self_ty);
        if let Some((of_trait, _)) = &block.trait_ {
            mentioned.visit_path(of_trait);
        }
        let is_own = |path: &&String| path.starts_with("crate::");
        let names = mentioned.1.iter().filter(is_own).map(|path| self.names.get(path));
        let names: Option<Vec<_>> = names.collect();
        names?.first().map(|(name, _)| name.as_str())
    }

    /// An `impl` for each trait in `#[derive(…)]`.
    fn derived(&self, item: &Item, attributes: &[Attribute]) -> Vec<String> {
        let (ident, generics) = match item {
            Item::Enum(item) => (&item.ident, &item.generics),
            Item::Struct(item) => (&item.ident, &item.generics),
            _ => return Vec::new(),
        };
        let (of_impl, of_type, bounds) = generics.split_for_impl();
        let conditions = conditions_of(attributes);
        let mut derived = Vec::new();
        for attribute in attributes.iter().filter(|attr| attr.path().is_ident("derive")) {
            let traits = attribute.parse_nested_meta(|meta| {
                let mut path = meta.path;
                if path.is_ident("Debug") {
                    path = parse_quote!(std::fmt::Debug);
                } else if path.is_ident("Hash") {
                    path = parse_quote!(std::hash::Hash);
                }
                derived.push(self.seen(parse_quote! {
                    #(#conditions)* impl #of_impl #path for #ident #of_type #bounds {}
                }));
                Ok(())
            });
            traits.expect("a list of traits");
        }
        derived
    }

    fn seen(mut self, mut item: Item) -> String {
        self.visit_item_mut(&mut item);
        printed(item)
    }

    fn resolved(&self, path: &Path) -> String {
        let names: Vec<_> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        self.sources.resolve(self.module, &names.join("::"))
    }
}

/// Leaves what users see of an item.
impl VisitMut for Scope<'_> {
    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        let kept = ["cfg", "deprecated", "non_exhaustive", "repr"];
        attributes.retain(|attribute| kept.iter().any(|name| attribute.path().is_ident(name)));
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        block.stmts.clear();
    }

    fn visit_pat_ident_mut(&mut self, argument: &mut PatIdent) {
        argument.mutability = None;
    }

    fn visit_receiver_mut(&mut self, receiver: &mut Receiver) {
        receiver.mutability = None;
    }

    /// All private fields with names become one.
    fn visit_item_struct_mut(&mut self, item: &mut ItemStruct) {
        let is_private = |field: &Field| !matches!(field.vis, Visibility::Public(_));
        if let Fields::Named(fields) = &mut item.fields {
            let mut has_private = false;
            let all = std::mem::take(&mut fields.named).into_iter();
            let listed = all.filter(|field| !is_private(field) || !std::mem::replace(&mut has_private, true));
            fields.named = listed.collect();
        }
        for field in item.fields.iter_mut().filter(|field| is_private(field)) {
            field.vis = Visibility::Inherited;
            field.ident = field.ident.as_ref().map(|ident| Ident::new("_", ident.span()));
            field.ty = parse_quote!(_);
        }
        visit_item_struct_mut(self, item);
    }

    /// Writes own names as users do, and those of other crates in full.
    fn visit_path_mut(&mut self, path: &mut Path) {
        visit_path_mut(self, path);
        let resolved = self.resolved(path);
        let name = self.names.get(&resolved).map_or(&resolved, |(name, _)| name);
        let mut named: Path = syn::parse_str(name).expect("a path");
        let last = path.segments.last_mut().expect("a name");
        let arguments = std::mem::replace(&mut last.arguments, PathArguments::None);
        if path.segments.iter().all(|segment| segment.arguments.is_none()) {
            named.segments.last_mut().expect("a name").arguments = arguments;
            *path = named;
        } else {
            path.segments.last_mut().expect("a name").arguments = arguments;
        }
    }
}

/// The definitions of the paths in a type or a trait, in their order.
struct Mentioned<'a>(&'a Scope<'a>, Vec<String>);

impl<'ast> Visit<'ast> for Mentioned<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        self.1.push(self.0.resolved(path));
        visit_path(self, path);
    }
}
