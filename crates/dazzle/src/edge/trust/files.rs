//! The trust directory. Keys are readable by their owner alone from their first byte on; every file is replaced whole.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Authority, Identity, TrustError};

const AUTHORITY: &str = "ca.pem";
const AUTHORITY_KEY: &str = "ca.key";
const CERTIFICATE: &str = "node.pem";
const KEY: &str = "node.key";

/// The identity that the file system in `dir` has stored.
pub fn load(dir: &Path) -> Result<Identity, TrustError> {
    let trust = trust(dir);
    Identity::from_pem(read(&trust, AUTHORITY)?, read(&trust, CERTIFICATE)?, read_key(&trust, KEY)?)
}

/// Stores the identity of the file system in `dir`.
pub fn store(dir: &Path, identity: &Identity) -> Result<(), TrustError> {
    let trust = create(dir)?;
    let [authority, certificate, key] = identity.pems();
    // The certificate last: where it is, everything is.
    for (name, text) in [(KEY, key), (AUTHORITY, authority), (CERTIFICATE, certificate)] {
        write(&trust, name, text)?;
    }
    Ok(())
}

/// The CA, where its key is held.
pub fn load_authority(dir: &Path) -> Result<Authority, TrustError> {
    let trust = trust(dir);
    Authority::from_pem(&read(&trust, AUTHORITY)?, &read_key(&trust, AUTHORITY_KEY)?)
}

/// Stores the CA with its key.
pub fn store_authority(dir: &Path, authority: &Authority) -> Result<(), TrustError> {
    let trust = create(dir)?;
    write(&trust, AUTHORITY_KEY, &authority.key_pem())?;
    write(&trust, AUTHORITY, authority.pem())
}

fn trust(dir: &Path) -> PathBuf {
    dir.join("trust")
}

fn create(dir: &Path) -> Result<PathBuf, TrustError> {
    let trust = trust(dir);
    match DirBuilder::new().mode(0o700).create(&trust) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(&trust, error)),
        _ => {}
    }
    // One that was there may be open to others.
    fs::set_permissions(&trust, Permissions::from_mode(0o700)).map_err(|error| failed(&trust, error))?;
    Ok(trust)
}

fn read(trust: &Path, name: &str) -> Result<String, TrustError> {
    let path = trust.join(name);
    fs::read_to_string(&path).map_err(|error| failed(&path, error))
}

/// A key, unless somebody else could have read it or put it there: anybody but who runs this, and root, who can do as much to
/// any file.
fn read_key(trust: &Path, name: &str) -> Result<String, TrustError> {
    let path = trust.join(name);
    let read = || {
        let mut file = File::open(&path)?;
        let metadata = file.metadata()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok((metadata, text))
    };
    let (metadata, text) = read().map_err(|error| failed(&path, error))?;
    let owner = metadata.uid();
    if owner != rustix::process::geteuid().as_raw() && owner != 0 {
        return Err(TrustError::Owned { path: path.display().to_string(), owner });
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(TrustError::Exposed { path: path.display().to_string() });
    }
    Ok(text)
}

fn write(trust: &Path, name: &str, text: &str) -> Result<(), TrustError> {
    let (path, fresh) = (trust.join(name), trust.join(format!("{name}.new")));
    let replace = || {
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        File::open(trust)?.sync_all()
    };
    replace().map_err(|error| failed(&path, error))
}

fn failed(path: &Path, error: std::io::Error) -> TrustError {
    TrustError::File { path: path.display().to_string(), why: error.to_string() }
}
