//! The examination of servers before locks are kept on them.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::connect::store_options;
use super::{LockManagerBuilder, Quorum};
use crate::engine::runtime::OwnThread;
use crate::servers::redis::{Examination, Trust};
use crate::types::diagnosis::Finding;
use crate::types::error::Result;

/// Examines the server on which locks with these settings would be kept, with a URL as for
/// [`connect`](LockManagerBuilder::connect). Of sentinels each is asked, and then their primary; of a
/// cluster, each master.
///
/// The list has all that connecting, or a later call, would be refused or warned of: each right of the
/// user by its name, the version, eviction, persistence, the clock, and replicas. What is as it should be
/// is listed too. A server that cannot be reached is a finding, not an error. Each server is asked once:
/// nothing is repeated, so a fault that passes is found as well.
///
/// Nothing is left on the servers: no key, no script and no message to a client. But a server notes in
/// its `ACL LOG` which rights were found missing, and, where there is an append-only file, that the user
/// may not read `appendfsync`.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) as for [`connect`](LockManagerBuilder::connect), before any
/// server is asked.
///
/// # Cancel safety
/// Dropping the future ends the connections.
///
/// # Examples
/// ```no_run
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// use fairlock::LockManager;
/// use fairlock::diagnose::{self, Verdict};
///
/// let settings = LockManager::builder().prefix("shop").replicas(1);
/// let findings = diagnose::server(settings, "redis://127.0.0.1:6379").await?;
/// for finding in findings.iter().filter(|finding| finding.verdict > Verdict::Fine) {
///     println!("{}: {}", finding.server, finding.text);
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "check")]
#[doc(alias = "doctor")]
pub async fn server(settings: LockManagerBuilder, url: &str) -> Result<Vec<Finding>> {
    let (url, wanted) = (vec![url.to_owned()], settings.own_thread);
    OwnThread::run_if(wanted, |_| examine(settings, None, url)).await
}

/// Examines the servers of a quorum in the same way.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) as for
/// [`connect_quorum`](LockManagerBuilder::connect_quorum), before any server is asked. Stores in memory are
/// refused too.
///
/// # Cancel safety
/// Dropping the future ends the connections.
pub async fn quorum(settings: LockManagerBuilder, quorum: Quorum) -> Result<Vec<Finding>> {
    let (urls, wanted) = (quorum.urls()?, settings.own_thread);
    OwnThread::run_if(wanted, |_| examine(settings, Some(quorum), urls)).await
}

async fn examine(
    builder: LockManagerBuilder,
    quorum: Option<Quorum>,
    urls: Vec<String>,
) -> Result<Vec<Finding>> {
    let (tls, credentials) = (builder.tls.clone(), builder.credentials.clone());
    let (settings, options) = match &quorum {
        Some(quorum) => builder.of_quorum(quorum, &urls)?,
        None => {
            let settings = builder.checked()?;
            let options = store_options(&settings);
            (settings, options)
        }
    };
    let examination = Examination {
        trust: Trust {
            tls: tls.as_ref(),
            credentials: credentials.as_ref(),
        },
        prefix: &settings.prefix,
        label: &settings.label,
        options,
        quorum: quorum.map(|_| Arc::default()),
    };
    let found = try_join_all(urls.iter().map(|url| examination.of(url))).await?;
    Ok(found.concat())
}
