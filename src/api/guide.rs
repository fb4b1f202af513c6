#![doc = include_str!("../../docs/guide.md")]
// The pages link each other as files. docs/links.html makes links to modules of them.

#[doc = include_str!("../../docs/cli.md")]
pub mod cli {}

#[doc = include_str!("../../docs/coming-from.md")]
pub mod coming_from {}

#[doc = include_str!("../../docs/connecting.md")]
pub mod connecting {}

#[doc = include_str!("../../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("../../docs/leaders.md")]
pub mod leaders {}

#[doc = include_str!("../../docs/metrics.md")]
pub mod metrics {}

#[doc = include_str!("../../docs/once.md")]
pub mod once {}

#[doc = include_str!("../../docs/operations.md")]
pub mod operations {}

#[doc = include_str!("../../docs/permits.md")]
pub mod permits {}

#[doc = include_str!("../../docs/production.md")]
pub mod production {}

#[doc = include_str!("../../docs/quorum.md")]
pub mod quorum {}

#[doc = include_str!("../../docs/servers.md")]
pub mod servers {}

#[doc = include_str!("../../docs/services.md")]
pub mod services {}

#[doc = include_str!("../../docs/web.md")]
pub mod web {}
