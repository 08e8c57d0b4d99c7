package main

import (
	_ "embed"

	"github.com/spf13/cobra"
)

// schema names the shape of the JSON output; it changes when a field changes
// its meaning or goes. New fields may come without that.
const schema = "sluice-bench/1"

// schemaDocument describes every field of the output, as a JSON Schema.
//
//go:embed schema.json
var schemaDocument []byte

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of what --json prints",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(schemaDocument)
			return err
		},
	}
}
