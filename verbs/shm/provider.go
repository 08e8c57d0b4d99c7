package shm

import "github.com/sluice-hpc/sluice/verbs"

// Limits of the device; doc.go lists them.
const (
	maxMR      = 8192
	maxMsg     = 1 << 30
	maxSGE     = 32
	maxInline  = 1024
	maxWR      = 1 << 15
	maxCQE     = 1 << 20
	maxQP      = 1 << 16
	maxAnswers = 16
)

const (
	providerName = "shm"
	deviceName   = "shm0"
)

func init() { verbs.Register(provider{}) }

type provider struct{}

func (provider) Name() string { return providerName }
func (provider) Rank() int    { return 0 }
