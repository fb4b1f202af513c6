//! The examination of servers before locks are kept on them.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::LockManagerBuilder;
use super::connect::store_options;
use crate::diagnosis::Finding;
use crate::engine::runtime::OwnThread;
use crate::error::Result;
use crate::store::redis::{Examination, Trust};

impl LockManagerBuilder {
    /// Examines the servers on which locks with these settings would be kept: one URL as for
    /// [`connect`](Self::connect), several as for [`quorum`](Self::quorum). Of sentinels each is asked, and
    /// then their primary; of a cluster, each master.
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
    /// [`Error::Invalid`](crate::Error::Invalid) as for [`connect`](Self::connect) and
    /// [`quorum`](Self::quorum), before any server is asked.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connections.
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// use fairlock::{LockManager, Verdict};
    ///
    /// let builder = LockManager::builder().prefix("shop").replicas(1);
    /// let findings = builder.diagnose(["redis://locks:secret@127.0.0.1:6379"]).await?;
    /// for finding in findings.iter().filter(|finding| finding.verdict > Verdict::Fine) {
    ///     eprintln!("{}: {}: {}", finding.server, finding.subject, finding.text);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "check")]
    #[doc(alias = "doctor")]
    pub async fn diagnose(self, urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Finding>> {
        let urls: Vec<String> = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let wanted = self.own_thread;
        OwnThread::run_if(wanted, |_| self.examine(urls)).await
    }

    async fn examine(self, urls: Vec<String>) -> Result<Vec<Finding>> {
        let (tls, credentials) = (self.tls.clone(), self.credentials.clone());
        let (settings, options) = if urls.len() == 1 {
            let settings = self.checked()?;
            let options = store_options(&settings);
            (settings, options)
        } else {
            self.of_quorum(&urls)?
        };
        let examination = Examination {
            trust: Trust {
                tls: tls.as_ref(),
                credentials: credentials.as_ref(),
            },
            prefix: &settings.prefix,
            label: &settings.label,
            options,
            quorum: (urls.len() > 1).then(Arc::default),
        };
        let found = try_join_all(urls.iter().map(|url| examination.of(url))).await?;
        Ok(found.concat())
    }
}
