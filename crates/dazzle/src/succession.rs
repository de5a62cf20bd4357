//! A restart that programs do not notice but by a pause: this program, as it is on disk by now, takes the place of the
//! process, which keeps its number, and with it the mount, open files and locks
//! (`docs/decisions/0025-restarts-keep-what-is-open.md`).

use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use client::{Above, Client, Heritage, NothingAbove};
use fuse::FaceHeritage;
use host::Host;
use roles::{Inherited, NoWill};
use tokio::runtime::Handle;
use tracing::{error, info};

use crate::config::Config;
use crate::edge::fuse_device::{ClaimedMount, LeftMount, Mount};
use crate::edge::process;
use crate::node::Parts;
use crate::versions;

/// How long calls of programs may take that are under way, before the mount changes hands.
const HOLD_PATIENCE: Duration = Duration::from_secs(10);

/// Of what is left: raised with every change of what belongs to it, also in `client::Heritage` and `fuse::FaceHeritage`.
/// A program of another version is not let in its place (`versions`), and would begin anew.
pub(crate) const VERSION: u32 = 5;

/// What one process leaves to the next.
#[derive(Debug)]
pub(crate) struct Will {
    heritage: Heritage,
    mount: Option<(LeftMount, FaceHeritage)>,
}

impl Will {
    /// Puts its bytes where they survive the process.
    pub(crate) fn write(&self) -> std::io::Result<OwnedFd> {
        let written = (VERSION, &self.heritage, &self.mount);
        process::leave_bytes(&postcard::to_stdvec(&written).map_err(std::io::Error::other)?)
    }

    /// The descriptors of the mount.
    pub(crate) fn mounted(&self) -> &[RawFd] {
        self.mount.as_ref().map_or(&[], |(mount, _)| mount.descriptors())
    }
}

/// What the process before left to this one, which holds it now.
pub(crate) struct Inheritance {
    heritage: Heritage,
    mount: Option<(ClaimedMount, FaceHeritage)>,
}

/// The mount that was taken over, once the client runs above which it stands.
pub(crate) type Adopted = Arc<OnceLock<Arc<Mount>>>;

impl Inheritance {
    /// Takes over what was written at `place`, and the descriptors of the mount. What is not taken over is closed.
    pub(crate) fn take(place: RawFd, mounted: &[RawFd]) -> std::io::Result<Inheritance> {
        let devices = mounted.iter().map(|&device| process::inherited(device)).collect::<Vec<_>>();
        let bytes = process::inherited_bytes(place)?;
        let devices = devices.into_iter().collect::<std::io::Result<Vec<_>>>()?;
        let (version, bytes) = postcard::take_from_bytes::<u32>(&bytes).map_err(std::io::Error::other)?;
        if version != VERSION {
            let why =
                format!("what the program before left has version {version}, and this one knows version {VERSION}");
            return Err(std::io::Error::other(why));
        }
        let left: (Heritage, Option<(LeftMount, FaceHeritage)>) =
            postcard::from_bytes(bytes).map_err(std::io::Error::other)?;
        let (heritage, mount) = left;
        let mount = match mount {
            Some((mount, face)) => {
                let few = || std::io::Error::other("of what belongs to the mount something was not left");
                Some((mount.claim(devices).ok_or_else(few)?, face))
            }
            None => None,
        };
        Ok(Inheritance { heritage, mount })
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
    /// Ends all roles so that the next process goes on with them. Where that cannot be, this one goes on, or ends as if it
    /// had been killed.
    pub(crate) async fn bequeath(&self, mount: Option<&Arc<Mount>>) -> Result<Will, NoWill> {
        let goes_on = |why: String| NoWill::GoesOn(format!("the daemon is not restarted, and goes on: {why}"));
        let supplying = self.supplying.try_lock();
        let _none = supplying.map_err(|_| goes_on("a target is being added or replaced; try again then".into()))?;
        // What the next process could not begin with is found before anything is given up.
        Config::load(&self.dir).map_err(|error| goes_on(error.to_string()))?;
        let tried = tokio::task::spawn_blocking(versions::try_successor).await;
        tried.unwrap_or_else(|error| Err(error.to_string())).map_err(goes_on)?;
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
