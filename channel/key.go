package channel

import (
	"crypto/hmac"
	"crypto/sha256"
)

// Key derives 32 bytes from the secret of the job, the same at all its ranks and
// different for each purpose, with which programs may have their own connections prove
// that they belong to it. It is nil where the job is insecure, that is to say, has no
// secret. HMAC-SHA256 over purpose (RFC 2104): nothing can be learned from it about the
// secret, or about other keys.
func (n *Node) Key(purpose string) []byte {
	secret := n.job.Secret()
	if secret == nil {
		return nil
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("sluice key\x00" + purpose))
	return h.Sum(nil)
}
