//! How the servers that a comparison starts belong together.

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Topology {
    /// One server
    Standalone,
    /// A primary with two replicas, and three sentinels
    Sentinel,
    /// Three masters with a replica each
    Cluster,
    /// Independent servers, of which a majority must grant a lock
    Quorum,
}

impl Topology {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Topology::Standalone => "standalone",
            Topology::Sentinel => "sentinel",
            Topology::Cluster => "cluster",
            Topology::Quorum => "quorum",
        }
    }
}
