//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
)

func (o *soakOptions) run(context.Context, *outputOptions) error {
	return fmt.Errorf("soak: %w: stops, kills and network name spaces are Linux's", errors.ErrUnsupported)
}
