//! A restart that programs do not notice but by a pause: this program, as it is on disk by now, takes the place of the process, which
//! keeps its number, and with it the mount, open files and locks (`docs/decisions/0025-restarts-keep-what-is-open.md`).

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use client::{Above, Client, Heritage, NothingAbove};
use fuse::FaceHeritage;
use host::Host;
use roles::{Inherited, NoWill};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tracing::{error, info};

use crate::config::Config;
use crate::edge::fuse_device::{ClaimedMount, LeftMount, Mount};
use crate::edge::process;
use crate::node::Parts;

/// How long calls of programs may take that are under way, before the mount changes hands.
const HOLD_PATIENCE: Duration = Duration::from_secs(10);

/// What one process leaves to the next.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Will {
    heritage: Heritage,
    mount: Option<(LeftMount, FaceHeritage)>,
}

/// The mount that was taken over, once the client runs above which it stands.
pub(crate) type Adopted = Arc<OnceLock<Arc<Mount>>>;

impl Will {
    /// Puts its bytes where they survive the process: that place, and all descriptors that the next process needs.
    pub(crate) fn write(&self) -> std::io::Result<(OwnedFd, Vec<RawFd>)> {
        let place = process::leave_bytes(&postcard::to_stdvec(self).map_err(std::io::Error::other)?)?;
        let mounted = self.mount.iter().flat_map(|(mount, _)| mount.descriptors()).copied();
        let kept = mounted.chain([place.as_raw_fd()]).collect();
        Ok((place, kept))
    }
}

/// What the process before left to this one, which holds it now.
pub(crate) struct Inheritance {
    heritage: Heritage,
    mount: Option<(ClaimedMount, FaceHeritage)>,
}

impl Inheritance {
    /// Takes over what was written at `place`.
    pub(crate) fn take(place: RawFd) -> std::io::Result<Inheritance> {
        let bytes = process::inherited_bytes(place)?;
        let Will { heritage, mount } = postcard::from_bytes(&bytes).map_err(std::io::Error::other)?;
        let mount = mount.map(|(mount, face)| mount.claim().map(|mount| (mount, face))).transpose()?;
        Ok(Inheritance { heritage, mount })
    }

    /// Where the mount is that nobody serves now.
    pub(crate) fn mounted_on(&self) -> Option<PathBuf> {
        self.mount.as_ref().map(|(mount, _)| mount.path().to_owned())
    }

    /// What the roles go on with, and where the mount will be found then.
    pub(crate) fn divide(self, host: Host, runtime: Handle) -> (Inherited, Adopted) {
        let Inheritance { heritage, mount } = self;
        let adopted = Adopted::default();
        let found = adopted.clone();
        let above = move |client: &Client| {
            let Some((mount, left)) = mount else { return Ok(Arc::new(NothingAbove) as Arc<dyn Above>) };
            let face = Arc::new(fuse::Face::new(client.clone(), host));
            face.inherit(left);
            let mount = Arc::new(Mount::adopt(mount, face.clone(), runtime).map_err(|error| error.to_string())?);
            assert!(adopted.set(mount.clone()).is_ok(), "it is taken over once");
            Ok(face.kernel(mount))
        };
        (Inherited { heritage, above: Box::new(above) }, found)
    }
}

impl Parts {
    /// Ends all roles so that the next process goes on with them. Where that cannot be, this one goes on, or ends as if it had been
    /// killed.
    pub(crate) async fn bequeath(&self, mount: Option<&Arc<Mount>>) -> Result<Will, NoWill> {
        let goes_on = |why: String| NoWill::GoesOn(format!("the daemon is not restarted, and goes on: {why}"));
        // What the next process could not begin with is found before anything is given up.
        Config::load(&self.dir).map_err(|error| goes_on(error.to_string()))?;
        let tried = tokio::task::spawn_blocking(process::try_own_program).await;
        tried.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(|error| goes_on(error.to_string()))?;
        let parting = self.roles.part().await.map_err(|error| goes_on(error.to_string()))?;
        let go_on = || mount.into_iter().for_each(|mount| mount.go_on());
        if let Some(mount) = mount
            && !mount.hold(HOLD_PATIENCE).await
        {
            go_on();
            let seconds = HOLD_PATIENCE.as_secs();
            return Err(goes_on(format!("calls of programs are under way for more than {seconds} s; try again later")));
        }
        let settling = async {
            if let Some(mount) = mount {
                mount.settle().await;
            }
        };
        match parting.last_will(settling).await {
            Ok(heritage) => {
                info!("another process goes on as this daemon");
                Ok(Will { heritage, mount: mount.map(|mount| mount.bequeath()) })
            }
            Err(NoWill::GoesOn(why)) => {
                go_on();
                Err(goes_on(why))
            }
            Err(NoWill::Ends(why)) => {
                error!(why, "the next process begins as if this one had been killed");
                Err(NoWill::Ends(why))
            }
        }
    }
}
